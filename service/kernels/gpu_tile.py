"""One program of the GPU attention kernel: tiles of query rows of a KV head, over ranges of their sequences' positions.

Masking uses selection: keys and values outside a sequence's tokens are never loaded, and masked scores are replaced
before use, so NaNs at masked positions have no effect.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Bool, Float, Int, Num

from service.kernels.gpu_work import AFTER_ALL, Item, SplitSpan, WorkTile, item_at, last_token_of, span_of, split_of
from service.kernels.limits import LARGEST_CACHED
from service.kernels.products.quantized import FP8
from service.kernels.reference import MASKED_SCORE, is_visible

Ref = Any  # a block of an array that a kernel reads or writes
Scalar = Int[Array, ""]
LOG2_E = math.log2(math.e)  # exp(x) = exp2(x * LOG2_E), and the hardware has exp2 only


class Operands(NamedTuple):
    """What a call reads, whole arrays; a program sees one KV head of each. None for what a call does not have."""

    pages: Any  # KV of [page, kv_head, position, dim]
    query: Ref  # [seq, token, kv_head, group, dim]
    paging: Any  # Paging
    new: Any | None  # key and value, [seq, token, kv_head, dim], `WorkTile.writes`
    sinks: Ref | None  # [kv_head, group]
    ends: Ref | None  # [block], the list, `WorkTile.is_split`


class SplitParts(NamedTuple):
    """Softmaxes over splits."""

    weighted: Ref  # [item, kv_head, row, dim], sums of weighted values
    highest: Ref  # [item, kv_head, row], scores
    totals: Ref  # [item, kv_head, row], sums of weights


class Outputs(NamedTuple):
    """What a call writes, likewise."""

    pages: Any | None  # KV with the new tokens, `WorkTile.writes`
    attended: Ref  # [seq, token, kv_head, group, dim], of blocks with one split
    parts: SplitParts | None  # of the others, `WorkTile.is_split`


def of_kv_head(array: Any, axis: int | None = None) -> pl.BlockSpec:
    """Return the block that is one KV head of an array, or all of an array without such an axis."""
    shape = [None if index == axis else size for index, size in enumerate(array.shape)]

    def place(_: Scalar, head: Scalar, *__: Scalar) -> tuple[Scalar | int, ...]:
        return tuple(head if index == axis else 0 for index in range(len(shape)))

    return pl.BlockSpec(tuple(shape), place)


def attend_tiles(operands: Operands, outputs: Outputs, *, tile: WorkTile) -> None:
    """Attend for each item of the list that is this program's; without a list, for the block with its number."""
    if operands.ends is None:
        item = Item(pl.program_id(0), jnp.int32(0), jnp.int32(1))
        _attend_tile(operands, outputs, item, jnp.int32(0), tile)
        return
    num_blocks = tile.num_seqs * tile.num_blocks
    blocks = jnp.arange(pl.next_power_of_2(num_blocks), dtype=jnp.int32)
    ends = plgpu.load(operands.ends.at[blocks], mask=blocks < num_blocks, other=AFTER_ALL)
    num_items = jnp.max(jnp.where(blocks < num_blocks, ends, 0))
    program, num_programs = pl.program_id(0), pl.num_programs(0)

    def take(turn: Scalar, _: tuple[()]) -> tuple[()]:
        index = program + turn * num_programs
        _attend_tile(operands, outputs, item_at(index, ends), index, tile)
        return ()

    jax.lax.fori_loop(jnp.int32(0), pl.cdiv(num_items - program, num_programs), take, ())


def _attend_tile(operands: Operands, outputs: Outputs, item: Item, index: Scalar, tile: WorkTile) -> None:
    """Attend from each query row of a block to the visible positions of one of its splits."""
    seq, block = item.block // tile.num_blocks, item.block % tile.num_blocks
    pages, paging = operands.pages, operands.paging
    head_dim = pages.keys.shape[-1]
    columns = jnp.arange(pl.next_power_of_2(head_dim), dtype=jnp.int32)
    in_block = jnp.arange(tile.num_rows, dtype=jnp.int32)
    rows = block * tile.num_rows + in_block
    tokens, heads = rows // tile.group, rows % tile.group
    is_row = tokens < tile.width
    place = (seq, tokens[:, None], heads[:, None], columns[None, :])
    mask = is_row[:, None] & (columns < head_dim)[None, :]
    query = plgpu.load(operands.query.at[place], mask=mask, other=0)
    span, positions, last_visible = _sight(paging, seq, block, tokens, tile)
    first, last, end = split_of(span, item.split, tile)
    load = functools.partial(_load, like=query, head_dim=head_dim, end=end, tile=tile)
    load_scales = functools.partial(_load_scales, end=end, tile=tile)

    def step(index: Scalar, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        highest, total, weighted = carry  # [row], [row], [row, dim]
        key_positions = index * tile.num_positions + jnp.arange(tile.num_positions, dtype=jnp.int32)
        page_ids = plgpu.load(
            paging.page_table.at[seq, key_positions // tile.page_size], mask=key_positions < end, other=0
        )
        keys = load(pages.keys, page_ids, key_positions)
        products = _product(query, keys, is_transposed=True)
        if pages.key_scales is not None:
            products = products * load_scales(pages.key_scales, page_ids, key_positions)
        scores = _scores(products, tile)
        window = tile.scoring.sliding_window
        visible = is_visible(positions[:, None], key_positions, window, last_visible[:, None])
        visible &= (key_positions < end)[None, :]
        new_highest = jnp.maximum(highest, jnp.max(jnp.where(visible, scores, MASKED_SCORE), axis=1))
        weights = jnp.where(visible, jnp.exp2(scores - new_highest[:, None]), 0)
        values = load(pages.values, page_ids, key_positions)
        decay = jnp.exp2(highest - new_highest)
        total = total * decay + jnp.sum(weights, axis=1)
        if pages.value_scales is not None:
            weights = weights * load_scales(pages.value_scales, page_ids, key_positions)
        weighted = weighted * decay[:, None] + _product(weights.astype(values.dtype), values)
        return new_highest, total, weighted

    initial = (
        jnp.full(tile.num_rows, MASKED_SCORE, jnp.float32),
        jnp.zeros(tile.num_rows, jnp.float32),
        jnp.zeros(query.shape, jnp.float32),
    )
    if tile.writes:
        is_new = (item.split == 0) & (paging.num_tokens[seq] > 0)
        initial = _write_and_attend(query, operands, outputs.pages, seq=seq, is_new=is_new, initial=initial, tile=tile)
    highest, total, weighted = jax.lax.fori_loop(first, last, step, initial)
    is_whole = item.num_splits == 1
    if outputs.parts is not None:
        places = (index, in_block[:, None], columns[None, :]), (index, in_block), (index, in_block)
        masks = mask & ~is_whole, is_row & ~is_whole, is_row & ~is_whole
        for ref, of_part, at, is_stored in zip(outputs.parts, (weighted, highest, total), places, masks, strict=True):
            plgpu.store(ref.at[at], of_part, mask=is_stored)
    sinks = None if operands.sinks is None else plgpu.load(operands.sinks.at[heads])
    finished = _finished(highest, total, weighted, sinks)
    plgpu.store(outputs.attended.at[place], finished.astype(outputs.attended.dtype), mask=mask & is_whole)


def _sight(
    paging: Any, seq: Scalar, block: Scalar, tokens: Int[Array, " row"], tile: WorkTile
) -> tuple[SplitSpan, Int[Array, " row"], Int[Array, " row"]]:
    """Return what a block reads, and of each of its query rows the position and the last position that it sees."""
    start, num_tokens = paging.start[seq], paging.num_tokens[seq]
    positions = start + tokens
    if paging.ahead is None:
        return span_of(block, start, num_tokens, None, tile), positions, positions
    ahead = plgpu.load(paging.ahead.at[seq, tokens], mask=tokens < num_tokens, other=0)
    ahead_of_last = paging.ahead[seq, last_token_of(block, num_tokens, tile)]
    return span_of(block, start, num_tokens, ahead_of_last, tile), positions, positions + ahead


def _finished(
    highest: Float[Array, " row"],
    total: Float[Array, " row"],
    weighted: Float[Array, "row dim"],
    sinks: Float[Array, " row"] | None,
) -> Float[Array, "row dim"]:
    """Return the results of query rows, each with its sink if there are any; of a padded one, which sees nothing, 0."""
    if sinks is not None:
        sinks = sinks.astype(jnp.float32) * LOG2_E
        decay = jnp.exp2(jnp.minimum(highest - sinks, 0))
        weighted = weighted * decay[:, None]
        total = total * decay + jnp.exp2(jnp.minimum(sinks - highest, 0))
    return weighted / jnp.where(total == 0, 1, total)[:, None]


def _write_and_attend(
    query: Float[Array, "row dim"],
    operands: Operands,
    written: Any,  # KV
    *,
    seq: Scalar,
    is_new: Bool[Array, ""],
    initial: tuple[Array, ...],
    tile: WorkTile,
) -> tuple[Array, ...]:
    """Write the key and the value of a sequence's one new token, if this program shall, and attend to it first.

    The loop over positions ends before it, because what one thread has written another may not see yet.
    """
    start = operands.paging.start[seq]
    head_dim = operands.pages.keys.shape[-1]
    columns = jnp.arange(query.shape[1], dtype=jnp.int32)
    page = plgpu.load(operands.paging.page_table.at[seq, start // tile.page_size], mask=is_new, other=0)
    position = start % tile.page_size
    key, value = (plgpu.load(ref.at[seq, 0, columns], mask=columns < head_dim, other=0) for ref in operands.new or ())
    if tile.has_scales:
        (stored_key, key_scale), (stored_value, value_scale) = _quantized(key, tile), _quantized(value, tile)
        stored = stored_key, stored_value, key_scale, value_scale
        key, value = _widened(stored_key, query.dtype, tile), _widened(stored_value, query.dtype, tile)
    else:
        stored = key.astype(tile.stored), value.astype(tile.stored)
        key, value, key_scale, value_scale = stored[0].astype(query.dtype), stored[1].astype(query.dtype), 1.0, 1.0
    for ref, vector in zip(written[:2], stored[:2], strict=True):
        plgpu.store(ref.at[page, position, columns], vector, mask=is_new & (columns < head_dim))
    for ref, scale in zip(written[2:], stored[2:], strict=False):  # none without scales
        plgpu.store(ref.at[page, position, 0], scale, mask=is_new)
    products = jnp.sum(query.astype(jnp.float32) * key.astype(jnp.float32)[None, :], axis=1)
    scores = _scores(products * key_scale, tile)
    value = value.astype(jnp.float32)[None, :] * value_scale
    highest, total, weighted = initial
    return (
        jnp.where(is_new, scores, highest),
        jnp.where(is_new, 1.0, total),
        jnp.where(is_new, jnp.broadcast_to(value, weighted.shape), weighted),
    )


def _load(
    ref: Ref,
    pages: Int[Array, " position"],
    key_positions: Int[Array, " position"],
    *,
    like: Float[Array, "row dim"],
    head_dim: int,
    end: Scalar,
    tile: WorkTile,
) -> Float[Array, "position dim"]:
    """Load the keys or values of positions before `end` in the query's dtype, with zeros elsewhere."""
    columns = jnp.arange(like.shape[1], dtype=jnp.int32)[None, :]
    mask = (key_positions < end)[:, None] & (columns < head_dim)
    vectors = ref.at[pages[:, None], (key_positions % tile.page_size)[:, None], columns]
    return _widened(plgpu.load(vectors, mask=mask, other=0), like.dtype, tile)


def _quantized(vector: Float[Array, " dim"], tile: WorkTile) -> tuple[Num[Array, " dim"], Float[Array, ""]]:
    """Return a new token's vector as it is stored, and its scale, as `kv.as_stored` does."""
    wide = vector.astype(jnp.float32)
    highest = jnp.max(jnp.abs(wide))
    scale = jnp.where(highest == 0, 1, highest / LARGEST_CACHED[tile.stored.name])
    has_nan = jnp.sum(jnp.where(wide == wide, 0, 1)) > 0  # noqa: PLR0124 (a maximum on a GPU may ignore NaN)
    scale = jnp.where(has_nan, jnp.nan, scale)
    scaled = wide / scale
    if tile.is_fp8:
        return jax.lax.bitcast_convert_type(scaled.astype(FP8), jnp.uint8), scale
    # Triton cannot round half to even.
    nearest = jnp.floor(scaled + 0.5)
    is_odd_tie = (nearest - scaled == 0.5) & (nearest - 2 * jnp.floor(nearest / 2) == 1)
    return jnp.where(is_odd_tie, nearest - 1, nearest).astype(jnp.int8), scale


def _widened(stored: Num[Array, "..."], dtype: jnp.dtype, tile: WorkTile) -> Float[Array, "..."]:
    """Convert stored keys or values, without their scales, to the query's dtype."""
    return (jax.lax.bitcast_convert_type(stored, FP8) if tile.is_fp8 else stored).astype(dtype)


def _load_scales(
    ref: Ref, pages: Int[Array, " position"], key_positions: Int[Array, " position"], *, end: Scalar, tile: WorkTile
) -> Float[Array, "1 position"]:
    """Load the scales of positions before `end`, with zeros elsewhere."""
    scales = ref.at[pages, key_positions % tile.page_size, jnp.zeros_like(pages)]
    return plgpu.load(scales, mask=key_positions < end, other=0)[None, :]


def _scores(products: Float[Array, " *row"], tile: WorkTile) -> Float[Array, " *row"]:
    """Return attention scores divided by log(2), for `exp2`."""
    scale, soft_cap = tile.scoring.scale, tile.scoring.soft_cap
    if soft_cap is None:
        return products * (scale * LOG2_E)
    return jnp.tanh(products * (scale / soft_cap)) * (soft_cap * LOG2_E)


def _product(
    left: Float[Array, "row inner"], right: Float[Array, "_ _"], *, is_transposed: bool = False
) -> Float[Array, "row column"]:
    """Return `left @ right`, or `left @ right.T`, in float32; float32 factors are not rounded to TF32."""
    precision = jax.lax.Precision.HIGHEST if left.dtype == jnp.float32 else None
    return plgpu.dot(left, right, trans_b=is_transposed, precision=precision)
