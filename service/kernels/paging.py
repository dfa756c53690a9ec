"""The positions and pages of a step's tokens: the indices used by every attention kernel.

    sequence:       | tokens already cached | tokens of this step | padding |
    position:       0                       start       start + num_tokens

Position `p` of sequence `s` is at offset `p % page_size` of the page `page_table[s, p // page_size]`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Int32, Shaped


class Runs(NamedTuple):
    """The ranges of new tokens per page, for each sequence and each page that it may write to."""

    ids: Int[Array, "seq page"]
    begin: Int[Array, "seq page"]  # first position of the page
    first: Int[Array, "seq page"]  # position of the first token
    end: Int[Array, "seq page"]  # one past the last token; at most `first` if there are none


ZERO_STATE = -1  # in place of the slot that a state is read from: it begins with zeros
STATE_BEFORE = -2  # the same: it goes on where the row before this one ended


class StateSlots(NamedTuple):
    """The slots of recurrent states, for each sequence of a step. No step writes a slot twice."""

    reads: Int[Array, " seq"]  # of the state before the first token; ZERO_STATE, or of a row STATE_BEFORE
    writes: Int[Array, " seq"]  # for the state after the last token; one behind the last slot drops it
    # Of rows whose last tokens may be wrong: how many of the first the state is written after. None: after all.
    known: Int[Array, " seq"] | None = None


class Paging(NamedTuple):
    """The sequences of a step and the locations of their tokens. A padded sequence has 0 tokens.

    A token that looks ahead sees positions after its own, which are in the cache or belong to tokens of the step. The
    last one that it sees is no earlier than that of the token before it, and its window ends at its own position.
    """

    start: Int[Array, " seq"]  # number of tokens cached by earlier steps
    num_tokens: Int[Array, " seq"]  # tokens in this step; the rest of the width is padding
    page_table: Int[Array, "seq page"]  # page ids in the order of positions; entries past the end are never read
    ahead: Int[Array, "seq token"] | None = None  # positions after its own that each token sees; None for none
    states: StateSlots | None = None  # of a model whose layers keep states

    def positions(self, width: int) -> Int[Array, "seq token"]:
        """Return the position of each of `width` tokens of each sequence."""
        return self.start[:, None] + jnp.arange(width, dtype=jnp.int32)[None, :]

    def last_visible(self, width: int) -> Int[Array, "seq token"]:
        """Return the last position that each of `width` tokens of each sequence sees."""
        return self.positions(width) if self.ahead is None else self.positions(width) + self.ahead

    def is_token(self, width: int) -> Bool[Array, "seq token"]:
        """Return True for tokens and False for padding."""
        return jnp.arange(width, dtype=jnp.int32)[None, :] < self.num_tokens[:, None]

    @property
    def num_known(self) -> Int[Array, " seq"]:
        """The first tokens of each sequence after which its state is written; those behind them may be wrong."""
        known = None if self.states is None else self.states.known
        return self.num_tokens if known is None else known

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


class Regions(NamedTuple):
    """The tokens of a step: one for each sequence that decodes, then rows of prompts, all of one width.

    A prompt's tokens may take several rows, as if of sequences with the same pages: every kernel writes the keys and
    values of all tokens before it reads any. No two rows write to the same page.

        | decode | decode | decode | row of a prompt ...... | row of a prompt ... padding |
    """

    decodes: Paging
    prompts: Paging

    @classmethod
    def of_prompts(cls, paging: Paging) -> "Regions":
        """Return the regions of a step without sequences that decode."""
        none = jnp.zeros(0, jnp.int32)
        return cls(Paging(none, none, jnp.zeros((0, paging.page_table.shape[1]), jnp.int32)), paging)

    def with_page_table(self, page_table: Int[Any, "seq page"]) -> "Regions":
        """Return the same tokens in the pages of one table: of the sequences that decode, then of the rows."""
        num_decodes = len(self.decodes.start)
        return Regions(
            self.decodes._replace(page_table=page_table[:num_decodes]),
            self.prompts._replace(page_table=page_table[num_decodes:]),
        )

    def with_states(self, states: Int[Any, "part seq"]) -> "Regions":
        """Return the same tokens with the slots of their states, in the order of `StateSlots`."""
        num_decodes = len(self.decodes.start)
        of_decodes, of_rows = StateSlots(*states[:2, :num_decodes]), StateSlots(*states[:, num_decodes:])
        return Regions(self.decodes._replace(states=of_decodes), self.prompts._replace(states=of_rows))

    def causal(self) -> "Regions":
        """Return the same tokens, none of which sees positions after its own."""
        return self._replace(prompts=self.prompts._replace(ahead=None))

    def in_window(self, table: Int[Any, "seq base_and_page"]) -> "Regions":
        """Return the same tokens in the pages that a window needs, as if each sequence began at a position of its own.

        Kernels need not know: masks depend only on differences of positions, and cached keys are rotated already.

        Args:
            table: of the sequences that decode, then of the rows: the position of the first page, which is a multiple
                of its size, and the pages.
        """
        num_decodes, bases, pages = len(self.decodes.start), table[:, 0], table[:, 1:]
        return Regions(
            self.decodes._replace(start=self.decodes.start - bases[:num_decodes], page_table=pages[:num_decodes]),
            self.prompts._replace(start=self.prompts.start - bases[num_decodes:], page_table=pages[num_decodes:]),
        )

    def of_length(self, length: int) -> "Regions":
        """Return the same tokens, each shifted by a number of positions before it."""
        return Regions(*(p._replace(start=jnp.where(p.num_tokens > 0, length, 0)) for p in self))

    def width(self, num_tokens: int) -> int:
        """Return the width of a row of a prompt, of a step with room for a number of tokens."""
        num_rows = len(self.prompts.start)
        return (num_tokens - len(self.decodes.start)) // num_rows if num_rows else 0

    def positions(self, num_tokens: int) -> Int[Array, " token"]:
        """Return the position of each token."""
        of_prompts = self.prompts.positions(self.width(num_tokens))
        return jnp.concatenate([self.decodes.start, of_prompts.reshape(-1)])

    def spans(self, num_tokens: int) -> Int32[Array, "span 2"]:
        """Return the first token and the end of each run of tokens; between them is padding, or a slot that is free."""
        first_row, width = len(self.decodes.start), self.width(num_tokens)
        begin = jnp.concatenate([jnp.zeros(1, jnp.int32), first_row + width * jnp.arange(len(self.prompts.start))])
        used_slots = jnp.where(self.decodes.num_tokens > 0, jnp.arange(1, first_row + 1), 0)
        end = jnp.concatenate([jnp.max(used_slots, initial=0)[None], begin[1:] + self.prompts.num_tokens])
        return jnp.stack([begin, end], axis=1).astype(jnp.int32)

    def attend(
        self,
        attend: Callable[[tuple[Any, ...], Any, Paging], tuple[Shaped[Array, "seq token ..."], Any]],
        arrays: tuple[Shaped[Array, "token ..."], ...],
        cache: Any,
    ) -> tuple[Shaped[Array, "token ..."], Any]:
        """Call a function for the tokens of each region, `[seq, token, ...]`, and join what it returns.

        Args:
            attend: takes the arrays, the cache and the paging of a region; returns one array, and the cache.
            arrays: of the tokens of the step.
            cache: passed from call to call.
        """
        num_tokens, num_decodes = len(arrays[0]), len(self.decodes.start)
        results = []
        for paging, first, width in (
            (self.decodes, 0, 1),
            (self.prompts, num_decodes, self.width(num_tokens)),
        ):
            num_seqs = len(paging.start)
            if num_seqs > 0:
                end = first + num_seqs * width
                own = tuple(array[first:end].reshape(num_seqs, width, *array.shape[1:]) for array in arrays)
                attended, cache = attend(own, cache, paging)
                results.append(attended.reshape(num_seqs * width, *attended.shape[2:]))
        return results[0] if len(results) == 1 else jnp.concatenate(results), cache
