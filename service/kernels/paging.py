"""Where the tokens of one step lie: the indices that every attention kernel reads.

    sequence row:   | tokens already in pages | tokens of this step | padding |
    position:       0                      start       start + num_tokens

A position `p` of row `s` lies in page `page_table[s, p // page_size]` at offset `p % page_size`.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


class Paging(NamedTuple):
    """The rows of a step and their pages. A padded row has `num_tokens` 0."""

    start: Int[Array, " seq"]  # tokens of the row that earlier steps put into pages
    num_tokens: Int[Array, " seq"]  # tokens of the row in this step; the rest of the row is padding
    page_table: Int[Array, "seq page"]  # page ids in the order of positions; entries past the end are never read

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
