"""The layout of an engine's cache: plain numbers, so that sizing an engine imports no jax."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CacheLayout:
    """How much cache there is, and into which parts steps cut it."""

    num_pages: int
    page_size: int  # token positions of one page
    slot_sizes: tuple[int, ...]  # how many slots, from the first on, a decode step may cover; the last covers all
    context_sizes: tuple[int, ...]  # how many positions, from the first on, a step may cover; the last covers all
    has_slot_cache: bool = False  # whether each slot has a row of its own, which pages are copied to and from

    @property
    def num_slots(self) -> int:
        """All slots."""
        return self.slot_sizes[-1]

    @property
    def num_parts(self) -> int:
        """Parts of a cache that are made one after the other: rows by context size and then pages, or pages alone."""
        return len(self.context_sizes) + 1 if self.has_slot_cache else 1
