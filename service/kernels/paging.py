"""The positions and pages of a step's tokens: the indices used by every attention kernel.

    sequence:       | tokens already cached | tokens of this step | padding |
    position:       0                       start       start + num_tokens

Position `p` of sequence `s` is at offset `p % page_size` of the page `page_table[s, p // page_size]`.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


class Runs(NamedTuple):
    """The ranges of new tokens per page, for each sequence and each page that it may write to."""

    ids: Int[Array, "seq page"]
    begin: Int[Array, "seq page"]  # first position of the page
    first: Int[Array, "seq page"]  # position of the first token
    end: Int[Array, "seq page"]  # one past the last token; at most `first` if there are none


class Paging(NamedTuple):
    """The sequences of a step and the locations of their tokens. A padded sequence has 0 tokens."""

    start: Int[Array, " seq"]  # number of tokens cached by earlier steps
    num_tokens: Int[Array, " seq"]  # tokens in this step; the rest of the width is padding
    page_table: Int[Array, "seq page"]  # page ids in the order of positions; entries past the end are never read

    def positions(self, width: int) -> Int[Array, "seq token"]:
        """Return the position of each of `width` tokens of each sequence."""
        return self.start[:, None] + jnp.arange(width, dtype=jnp.int32)[None, :]

    def is_token(self, width: int) -> Bool[Array, "seq token"]:
        """Return True for tokens and False for padding."""
        return jnp.arange(width, dtype=jnp.int32)[None, :] < self.num_tokens[:, None]

    def runs(self, width: int, page_size: int) -> "Runs":
        """Return the pages that sequences of at most `width` new tokens write to, and the positions in each."""
        most_pages = (width + page_size - 2) // page_size + 1  # that `width` adjacent positions can touch
        page = self.start[:, None] // page_size + jnp.arange(most_pages, dtype=jnp.int32)[None, :]
        first = jnp.maximum(self.start[:, None], page * page_size)
        end = jnp.minimum((self.start + self.num_tokens)[:, None], (page + 1) * page_size)
        ids = jnp.take_along_axis(self.page_table, jnp.minimum(page, self.page_table.shape[1] - 1), axis=1)
        return Runs(ids, page * page_size, first, end)

    def destinations(
        self, width: int, *, num_pages: int, page_size: int
    ) -> tuple[Int[Array, "seq token"], Int[Array, "seq token"]]:
        """Return each token's page id and its offset in the page; the page id of padding is `num_pages`."""
        positions = self.positions(width)
        # Padding may run past the table's end: clip the read here, drop the write below.
        entries = jnp.minimum(positions // page_size, self.page_table.shape[1] - 1)
        page_ids = jnp.take_along_axis(self.page_table, entries, axis=1)
        return jnp.where(self.is_token(width), page_ids, num_pages), positions % page_size
