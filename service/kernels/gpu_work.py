"""The work of a GPU's attention kernel: splits of the positions that blocks of query rows read, in a list for programs.

The number of a sequence's splits follows from its own length and from the shape of the step, never from the other
sequences, so that these do not change its results. The list puts the splits of all blocks one behind the other; each
program takes the one with its number, then every one that is a whole grid further on:

    block       0        1   2              ends       3  4  8  (the list)
    split       0 1 2    0   0 1 2 3        item       0 1 2 3 4 5 6 7
    positions   ===--    =   ======-        program    0 1 2 3 4 0 1 2     of a grid of 5
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jaxtyping import Array, Int

from service.kernels.attention import Scoring
from service.kernels.kv import has_scales
from service.kernels.paging import Paging
from service.kernels.products.quantized import FP8
from service.kernels.running_sum import running_sum

Scalar = Int[Array, ""]
Blocks = Int[Array, "*#block"]
AFTER_ALL = np.iinfo(np.int32).max  # fills a list up to a power of two


@dataclass(frozen=True)
class WorkTile:
    """The constants of a kernel call."""

    num_rows: int  # query rows of one program, which are a block of a sequence
    num_positions: int  # key positions of one tile step, which is one iteration of the program's loop
    num_seqs: int
    width: int  # new tokens of a sequence
    writes: bool  # whether the kernel writes the new tokens into their pages: one of each sequence
    group: int  # query heads of a KV head, and so query rows of one token
    page_size: int  # token positions
    scoring: Scoring
    stored: np.dtype  # of cached keys and values; FP8 is passed as uint8
    most_splits: int = 1  # of the positions that a block reads
    shortest_split: int = 1  # tile steps, unless a block reads fewer

    @property
    def num_blocks(self) -> int:
        """Blocks of query rows of a sequence."""
        return pl.cdiv(self.width * self.group, self.num_rows)

    @property
    def is_split(self) -> bool:
        """Whether a block may have several splits, so that there is a list, and partial results are joined."""
        return self.most_splits > 1

    @property
    def most_items(self) -> int:
        """The splits that all blocks have at most."""
        return self.num_seqs * self.num_blocks * self.most_splits

    @property
    def is_fp8(self) -> bool:
        """Whether keys and values are FP8, passed as uint8."""
        return self.stored == FP8

    @property
    def has_scales(self) -> bool:
        """Whether keys and values have scales, [page, position, 1]."""
        return has_scales(self.stored)


class SplitSpan(NamedTuple):
    """What a block of query rows, or one of its splits, reads."""

    first: Blocks  # tile step, counted from position 0 of the sequence
    last: Blocks  # one past the last tile step
    end: Blocks  # one past the last position


class Item(NamedTuple):
    """A place in the list."""

    block: Scalar  # counted over all sequences
    split: Scalar
    num_splits: Scalar  # of the block


def last_token_of(block: Blocks, num_tokens: Blocks, tile: WorkTile) -> Blocks:
    """Return the last token of a sequence's block, by its tokens in this step; the first for a block without any."""
    last_row = (block + 1) * tile.num_rows - 1
    return jnp.maximum(jnp.minimum(last_row // tile.group, num_tokens - 1), 0)


def span_of(block: Blocks, start: Blocks, num_tokens: Blocks, ahead: Blocks | None, tile: WorkTile) -> SplitSpan:
    """Return what a block of a sequence reads.

    Args:
        block: counted from the first of the sequence.
        start: of the sequence, positions that earlier steps cached.
        num_tokens: of the sequence, in this step.
        ahead: positions that the block's last token sees after its own, of which no other token of it sees later ones.
        tile: the constants of the call.
    """
    first_token = block * tile.num_rows // tile.group
    last_token = last_token_of(block, num_tokens, tile)
    num_read = last_token if tile.writes else last_token + 1
    if ahead is not None:
        num_read = num_read + ahead
    end = jnp.where(first_token < num_tokens, start + num_read, 0)
    window = tile.scoring.sliding_window
    begin = jnp.zeros_like(end) if window is None else jnp.maximum(start + first_token - window + 1, 0)
    first = begin // tile.num_positions
    return SplitSpan(first, jnp.maximum(pl.cdiv(end, tile.num_positions), first), end)


def split_of(span: SplitSpan, split: Scalar, tile: WorkTile) -> SplitSpan:
    """Return a block's split."""
    share = _share(span, tile)
    first = span.first + split * share
    return SplitSpan(first, jnp.minimum(first + share, span.last), span.end)


def work_list(paging: Paging, tile: WorkTile) -> Int[Array, " block"]:
    """Return the number of splits of each block and all before it; a block that reads nothing has one, too."""
    block, start, num_tokens = jnp.arange(tile.num_blocks)[None, :], paging.start[:, None], paging.num_tokens[:, None]
    ahead = paging.ahead
    if ahead is not None:
        ahead = jnp.take_along_axis(ahead, last_token_of(block, num_tokens, tile), axis=1)
    span = span_of(block, start, num_tokens, ahead, tile)
    num_splits = jnp.maximum(pl.cdiv(span.last - span.first, _share(span, tile)), 1).reshape(-1)
    return running_sum(num_splits)


def item_at(index: Scalar, ends: Int[Array, " block"]) -> Item:
    """Return what is at a place of the list, which AFTER_ALL may follow."""
    block = jnp.sum((ends <= index).astype(jnp.int32))
    before = jnp.max(jnp.where(ends <= index, ends, 0))
    end = jnp.min(jnp.where(ends > index, ends, AFTER_ALL))
    return Item(block, index - before, end - before)


def _share(span: SplitSpan, tile: WorkTile) -> Blocks:
    """Return the tile steps of a split; the last one of a block may have fewer."""
    return jnp.maximum(pl.cdiv(span.last - span.first, tile.most_splits), tile.shortest_split)
