"""The layout of an engine's cache in plain numbers, so that sizing an engine imports no jax."""

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise


class CopyKind(StrEnum):
    """The copies within a cache that has a row per slot."""

    SAVE = "save"  # slot to pages, for the prefix cache
    RESTORE = "restore"  # pages to slot: a cached prefix
    INSERT = "insert"  # prefill row to slot: the result of a prefill step
    EXTRACT = "extract"  # slot to prefill row: the prompt so far, before the next chunk

    @property
    def has_pages(self) -> bool:
        """Whether the other side of the copy is pages rather than the prefill row."""
        return self in (CopyKind.SAVE, CopyKind.RESTORE)

    @property
    def leaves_slot(self) -> bool:
        """Whether the copy reads from the slot."""
        return self in (CopyKind.SAVE, CopyKind.EXTRACT)


@dataclass(frozen=True)
class CacheLayout:
    """The size of a cache and its division into blocks."""

    num_pages: int
    page_size: int  # token positions of one page
    slot_sizes: tuple[int, ...]  # numbers of leading slots that a decode step may cover; the last covers all
    context_sizes: tuple[int, ...]  # numbers of leading positions that a step may cover; the last covers all
    has_slot_cache: bool = False  # whether each slot has a row, in addition to the prefill row and pages

    @property
    def num_slots(self) -> int:
        return self.slot_sizes[-1]


def spans(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the half-open index range of each part from the cumulative sizes."""
    return list(pairwise((0, *sizes)))
