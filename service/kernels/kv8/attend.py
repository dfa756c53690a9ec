"""Attention of a block of a sequence's queries over its pages of words, which are prefetched to VMEM.

A page is a tile of positions. Its keys and values are widened on the core; its scales, if they are in 8 bits, multiply
scores and weights.

Source: Dao et al. 2022, arXiv:2205.14135 (tiles, running softmax); Kwon et al. 2023, arXiv:2309.06180 (pages).
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Float32, Int, Int32

from service.kernels.attention import Scoring
from service.kernels.kv import has_scales
from service.kernels.kv8.words import heads_per_word, unpacked
from service.kernels.paging import Paging
from service.kernels.reference import MASKED_SCORE

BUFFER_BYTES = 4 * 2**20  # of pages in flight or in use
MOST_BUFFERS = 4  # enough for copies of small pages to overlap


@dataclass(frozen=True)
class Tile:
    """The constants of a kernel call."""

    num_rows: int  # of a block of queries, including padding
    num_tokens: int  # of a block
    group: int  # query heads that share a key-value head; rows of one token are adjacent
    num_joined: int  # heads that form each key-value head, one after another in a group
    scoring: Scoring
    kv_dtype: str  # of keys and values


def attend_pages(
    rows: Float[Array, "seq kv_head row dim"],
    pages: tuple[Int32[Array, "page position word dim"], *tuple[Float32[Array, "page 1 key_and_value position"], ...]],
    paging: Paging,
    tile: Tile,
    *,
    interpret: bool = False,
) -> Float[Array, "seq kv_head row dim"]:
    """Attend from the queries of all sequences, a block of rows at a time.

    Args:
        rows: queries, padded to whole blocks; results of padding are undefined.
        pages: packed keys and values, and their scales if they are in 8 bits.
        paging: the paging of the step.
        tile: the size of blocks.
        interpret: emulate the kernel without a TPU, for tests.
    """
    num_seqs, num_heads, num_rows, dim = rows.shape
    block = pl.BlockSpec((None, num_heads, tile.num_rows, dim), lambda seq, i, *_: (seq, 0, i, 0))
    page_bytes = sum(array.dtype.itemsize * math.prod(array.shape[1:]) for array in pages)
    num_buffers = max(min(BUFFER_BYTES // page_bytes, MOST_BUFFERS), 2)
    state = (num_heads, tile.num_rows, dim)
    numbers = (paging.page_table, paging.start, paging.num_tokens)
    return pl.pallas_call(
        functools.partial(_attend_block, tile=tile),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(numbers),
            grid=(num_seqs, num_rows // (tile.num_rows)),
            in_specs=[block, *[pl.BlockSpec(memory_space=pl.ANY) for _ in pages]],
            out_specs=block,
            scratch_shapes=[
                *[pltpu.VMEM((num_buffers, *array.shape[1:]), array.dtype) for array in pages],
                pltpu.SemaphoreType.DMA((num_buffers, len(pages))),
                *[pltpu.VMEM((*state[:2], width), jnp.float32) for width in (dim, 1, 1)],
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(rows.shape, rows.dtype),
        interpret=interpret,
        name="kv8_attention",
    )(*numbers, rows, *pages)


class _Block(NamedTuple):
    """The positions of a block's queries, and the pages that they see."""

    first: Int[Array, ""]  # position of the first query
    end: Int[Array, ""]  # one past the position of the last query that is not padding
    first_page: Int[Array, ""]
    end_page: Int[Array, ""]

    @staticmethod
    def of(tile: Tile, start: Int[Array, ""], num_tokens: Int[Array, ""], page_size: int) -> "_Block":
        """Return the block of this program."""
        before = pl.program_id(1) * tile.num_tokens  # tokens of the step before the block
        first = start + before
        end = start + jnp.minimum(before + tile.num_tokens, num_tokens)
        window = tile.scoring.sliding_window
        seen = 0 if window is None else jnp.maximum(first - window + 1, 0)
        first_page = jax.lax.div(jnp.int32(seen), jnp.int32(page_size))
        return _Block(first, end, first_page, jnp.where(before < num_tokens, pl.cdiv(end, page_size), first_page))

    def visible(self, tile: Tile, page: Int[Array, ""], shape: tuple[int, int]) -> Bool[Array, "row position"]:
        """Return which positions of a page each row sees."""
        positions = page * shape[1] + jax.lax.broadcasted_iota(jnp.int32, shape, 1)
        queries = self.first + jax.lax.div(jax.lax.broadcasted_iota(jnp.int32, shape, 0), jnp.int32(tile.group))
        is_visible = (positions <= queries) & (positions < self.end)
        if tile.scoring.sliding_window is not None:
            is_visible &= positions > queries - tile.scoring.sliding_window
        return is_visible


def _attend_block(
    table: jax.Ref,
    starts: jax.Ref,
    counts: jax.Ref,
    *refs: jax.Ref,
    tile: Tile,
) -> None:
    """Attend from one block over its pages, one page at a time."""
    rows, *arrays, arrived, sums, totals, highest = refs
    count = len(arrays) // 2
    pages, attended, buffers = arrays[:count], arrays[count], arrays[count + 1 :]
    seq, num_pages, page_size, num_buffers = pl.program_id(0), *pages[0].shape[:2], buffers[0].shape[0]
    block = _Block.of(tile, starts[seq], counts[seq], page_size)
    per_word = heads_per_word(tile.kv_dtype)
    row = jax.lax.broadcasted_iota(jnp.int32, (rows.shape[1], page_size), 0)
    joined_head = jax.lax.div(jax.lax.rem(row, jnp.int32(tile.group)), jnp.int32(tile.group // tile.num_joined))
    position = jax.lax.broadcasted_iota(jnp.int32, (page_size, rows.shape[2]), 0)  # in a page

    def for_copies(page: Int[Array, ""], act: Callable[[Any], None]) -> None:
        buffer = jax.lax.rem(page, num_buffers)
        place = jnp.clip(table[seq, page], 0, num_pages - 1)  # a copy from outside the array would halt the chip
        for index, (array, copied) in enumerate(zip(pages, buffers, strict=True)):
            act(pltpu.make_async_copy(array.at[place], copied.at[buffer], arrived.at[buffer, index]))

    def begin(page: Int[Array, ""]) -> None:
        @pl.when(page < block.end_page)
        def _() -> None:
            for_copies(page, lambda copy: copy.start())

    def scales_of(buffer: Int[Array, ""], head: int, part: int) -> Float32[Array, "row position"]:
        """Return the scale of each row's own head, of keys (0) or values (1)."""
        first, *others = (
            buffers[1][buffer, 0, 2 * (head * tile.num_joined + index) + part][None] for index in range(tile.num_joined)
        )
        for index, scales in enumerate(others, 1):
            first = jnp.where(joined_head == index, scales, first)
        return first

    sums[...], totals[...] = jnp.zeros(sums.shape), jnp.zeros(totals.shape)
    highest[...] = jnp.full(highest.shape, MASKED_SCORE)
    for ahead in range(num_buffers - 1):
        begin(block.first_page + ahead)

    @pl.loop(block.first_page, block.end_page)
    def _(page: Int[Array, ""]) -> None:
        begin(page + num_buffers - 1)
        for_copies(page, lambda copy: copy.wait())
        is_visible = block.visible(tile, page, (rows.shape[1], page_size))
        buffer = jax.lax.rem(page, num_buffers)
        for head in range(rows.shape[0]):
            word, place = buffers[0][buffer, :, head // per_word], 2 * (head % per_word)
            keys, values = (unpacked(word, place + i, tile.kv_dtype).astype(rows.dtype) for i in range(2))
            scores = _product(rows[head], keys, 1) * tile.scoring.scale
            if has_scales(tile.kv_dtype):
                scores *= scales_of(buffer, head, 0)
            if tile.scoring.soft_cap is not None:
                scores = tile.scoring.soft_cap * jnp.tanh(scores / tile.scoring.soft_cap)
            scores = jnp.where(is_visible, scores, MASKED_SCORE)
            top = jnp.maximum(highest[head], jnp.max(scores, axis=1, keepdims=True))
            weights = jnp.where(is_visible, jnp.exp(scores - top), 0)
            decay = jnp.exp(highest[head] - top)
            totals[head] = totals[head] * decay + jnp.sum(weights, axis=1, keepdims=True)
            if has_scales(tile.kv_dtype):
                # Zero after scaling too: the scale of an invisible position may be NaN.
                weights = jnp.where(is_visible, weights * scales_of(buffer, head, 1), 0)
            else:  # as may be what is not the sequence's own
                values = jnp.where(page * page_size + position < block.end, values, 0)
            sums[head] = sums[head] * decay + _product(weights.astype(rows.dtype), values, 0)
            highest[head] = top

    attended[...] = (sums[...] / jnp.where(totals[...] == 0, 1, totals[...])).astype(attended.dtype)


def _product(x: Float[Array, "row in"], y: Float[Array, "a b"], axis: int) -> Float32[Array, "row out"]:
    """Contract the second axis of `x` with one of `y`; float32 is not rounded to bfloat16."""
    precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    dimensions = (((1,), (axis,)), ((), ()))
    return jax.lax.dot_general(x, y, dimensions, precision=precision, preferred_element_type=jnp.float32)
