"""The layout of an engine's cache: plain numbers, so that sizing an engine imports no jax."""

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise


class CopyKind(StrEnum):
    """The copies within a cache that keeps a row per slot."""

    SAVE = "save"  # slot to pages, where other sequences can find them
    RESTORE = "restore"  # pages to slot: a cached prefix
    INSERT = "insert"  # prefill row to slot: what a prefill step has computed
    EXTRACT = "extract"  # slot to prefill row: what earlier steps have computed of a prompt

    @property
    def has_pages(self) -> bool:
        """Whether pages are one side of the copy; otherwise the prefill row is."""
        return self in (CopyKind.SAVE, CopyKind.RESTORE)

    @property
    def leaves_slot(self) -> bool:
        """Whether the slot is the side that is read."""
        return self in (CopyKind.SAVE, CopyKind.EXTRACT)


@dataclass(frozen=True)
class CacheLayout:
    """How much cache there is, and how it is cut."""

    num_pages: int
    page_size: int  # token positions of one page
    slot_sizes: tuple[int, ...]  # how many slots, from the first on, a decode step may cover; the last covers all
    context_sizes: tuple[int, ...]  # how many positions, from the first on, a step may cover; the last covers all
    has_slot_cache: bool = False  # whether each slot has a row of its own, besides the prefill row and pages

    @property
    def num_slots(self) -> int:
        """All slots."""
        return self.slot_sizes[-1]


def spans(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the first index of each part, and the one after its last, from the sizes up to each part's end."""
    return list(pairwise((0, *sizes)))
