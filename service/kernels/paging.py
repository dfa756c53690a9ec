"""Where the tokens of one step lie: the indices that every attention kernel reads.

    sequence row:   | tokens already cached | tokens of this step | padding |
    position:       0                       start       start + num_tokens

A kernel that keeps its cache in pages finds position `p` of row `s` at offset `p % page_size` of the page
`page_table[s, p // page_size]`; one that keeps a row per slot finds it in row `slots[s]`.

A step of one token a row is a decode step, and in a decode step row `i` is slot `i`: what a kernel keeps by slot is
then read in place.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


@dataclass(frozen=True)
class CacheLayout:
    """How much cache there is, and which parts of it a step may be about."""

    num_pages: int
    page_size: int  # token positions of one page
    slot_sizes: tuple[int, ...]  # how many slots, from the first on, a decode step may be about; the last: all
    context_sizes: tuple[int, ...]  # how many positions, from the first on, a step may be about; the last: all

    @property
    def num_slots(self) -> int:
        """All slots."""
        return self.slot_sizes[-1]


class RowPages(NamedTuple):
    """Neighbouring pages of a slot's row, as one copy between them and the row takes them."""

    slot: Int[Array, ""]
    first: Int[Array, ""]  # in the order of the row's positions, in pages
    ids: Int[Array, " page"]  # `num_pages` is no page


class Paging(NamedTuple):
    """The rows of a step and where they lie. A padded row has `num_tokens` 0."""

    start: Int[Array, " seq"]  # tokens of the row that earlier steps have cached
    num_tokens: Int[Array, " seq"]  # tokens of the row in this step; the rest of the row is padding
    page_table: Int[Array, "seq page"]  # page ids in the order of positions; entries past the end are never read
    slots: Int[Array, " seq"]  # a padded row has `num_slots`, which is no slot

    def positions(self, width: int) -> Int[Array, "seq token"]:
        """Return the position of each of `width` tokens of each row."""
        return self.start[:, None] + jnp.arange(width, dtype=jnp.int32)[None, :]

    def is_token(self, width: int) -> Bool[Array, "seq token"]:
        """Tell tokens from padding."""
        return jnp.arange(width, dtype=jnp.int32)[None, :] < self.num_tokens[:, None]

    def destinations(
        self, width: int, *, num_pages: int, page_size: int
    ) -> tuple[Int[Array, "seq token"], Int[Array, "seq token"]]:
        """Return the page id and the offset where each token is written; padding gets `num_pages`, which is no page."""
        positions = self.positions(width)
        # Padding may run past the table's end: clip the read here, drop the write below.
        entries = jnp.minimum(positions // page_size, self.page_table.shape[1] - 1)
        page_ids = jnp.take_along_axis(self.page_table, entries, axis=1)
        return jnp.where(self.is_token(width), page_ids, num_pages), positions % page_size
