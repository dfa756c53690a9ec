"""Positions, pages and slots of the tokens of one step: the indices that every attention kernel reads.

    sequence:       | tokens already cached | tokens of this step | padding |
    position:       0                       start       start + num_tokens

A kernel that keeps its cache in pages finds position `p` of sequence `s` at offset `p % page_size` of the page
`page_table[s, p // page_size]`; one that keeps a row per slot finds it in row `slots[s]`.

A step of one token per sequence is a decode step, and in a decode step sequence `i` is in slot `i`, so a kernel reads a
slot's row in place.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


class RowPages(NamedTuple):
    """Neighbouring pages of a slot's row, which one copy covers."""

    slot: Int[Any, ""]
    first: Int[Any, ""]  # index of the first page, in the order of the row's positions
    ids: Int[Any, " page"]  # `num_pages` is padding, at the end


class Runs(NamedTuple):
    """The tokens of a step that go into one page, for each sequence and each page that it may reach."""

    ids: Int[Array, "seq page"]
    begin: Int[Array, "seq page"]  # position of the page's first
    first: Int[Array, "seq page"]  # position of the first token
    end: Int[Array, "seq page"]  # position after the last token; not above `first` if none goes there


class Paging(NamedTuple):
    """The sequences of a step and the places of their tokens. A padded sequence has 0 tokens."""

    start: Int[Array, " seq"]  # tokens that earlier steps have cached
    num_tokens: Int[Array, " seq"]  # tokens in this step; the rest of the width is padding
    page_table: Int[Array, "seq page"]  # page ids in the order of positions; entries past the end are never read
    slots: Int[Array, " seq"]  # `num_slots` for a padded sequence

    def positions(self, width: int) -> Int[Array, "seq token"]:
        """Return the position of each of `width` tokens of each sequence."""
        return self.start[:, None] + jnp.arange(width, dtype=jnp.int32)[None, :]

    def is_token(self, width: int) -> Bool[Array, "seq token"]:
        """Return True for tokens and False for padding."""
        return jnp.arange(width, dtype=jnp.int32)[None, :] < self.num_tokens[:, None]

    def runs(self, width: int, page_size: int) -> "Runs":
        """Return the pages that sequences of at most `width` tokens reach, and which positions of each."""
        most_pages = (width + page_size - 2) // page_size + 1  # that `width` neighbouring positions can be in
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
