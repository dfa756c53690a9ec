"""One program of the GPU attention kernel: a tile of query rows of a KV head over a range of the sequence's positions.

Masking uses selection: keys and values outside a sequence's tokens are never loaded, and masked scores are replaced
before use, so NaNs at masked positions have no effect.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Bool, Float, Int, Num

from service.kernels.attention import Scoring
from service.kernels.kv import has_scales
from service.kernels.limits import LARGEST_CACHED
from service.kernels.products.quantized import FP8
from service.kernels.reference import MASKED_SCORE, is_visible

Ref = Any  # a block of an array that a kernel reads or writes
Scalar = Int[Array, ""]
LOG2_E = math.log2(math.e)  # exp(x) = exp2(x * LOG2_E), and the hardware has exp2 only


@dataclass(frozen=True)
class Tile:
    """The constants of a kernel call."""

    num_rows: int  # query rows of one program
    num_positions: int  # key positions of one tile step, which is one iteration of the program's loop
    num_splits: int  # programs that share the context of the same query rows
    width: int  # new tokens of a sequence
    group: int  # query heads of a KV head, and so query rows of one token
    page_size: int  # token positions
    scoring: Scoring
    stored: np.dtype  # of cached keys and values; FP8 is passed as uint8
    is_unfinished: bool  # whether something is left to be added to the softmax even with one split
    looks_ahead: bool = False  # whether tokens see positions after their own, [token]

    @property
    def is_finished(self) -> bool:
        """Whether a program outputs results; otherwise, sums of weighted values, highest scores and sums of weights."""
        return self.num_splits == 1 and not self.is_unfinished

    @property
    def is_fp8(self) -> bool:
        """Whether keys and values are FP8, passed as uint8."""
        return self.stored == FP8

    @property
    def has_scales(self) -> bool:
        """Whether keys and values have scales, [page, position, 1]."""
        return has_scales(self.stored)

    @property
    def writes(self) -> bool:
        """Whether the kernel writes the new tokens into their pages: one of each sequence."""
        return self.width == 1


class _Refs(NamedTuple):
    """What a kernel call reads and writes beyond what every call does."""

    scales: Sequence[Ref]  # [page, position, 1], of keys and values, `Tile.has_scales`
    ahead: Sequence[Ref]  # [token], positions after its own that a token sees, `Tile.looks_ahead`
    new: Sequence[Ref]  # [token, dim], key and value, `Tile.writes`
    outputs: Sequence[Ref]  # one if `Tile.is_finished`, else three
    pages: Sequence[Ref]  # the keys, the values and their scales to be written, `Tile.writes`

    @classmethod
    def of(cls, refs: Sequence[Ref], tile: Tile) -> "_Refs":
        num_scales = 2 if tile.has_scales else 0
        num_new, num_pages = (2, 2 + num_scales) if tile.writes else (0, 0)
        first_new = num_scales + tile.looks_ahead
        first_output, first_page = first_new + num_new, len(refs) - num_pages
        return cls(
            refs[:num_scales],
            refs[num_scales:first_new],
            refs[first_new:first_output],
            refs[first_output:first_page],
            refs[first_page:],
        )


def attend_tile(  # noqa: PLR0917 (Pallas gives them by position)
    query_ref: Ref,  # [token, group, dim]
    table_ref: Ref,  # [page], of this sequence
    start_ref: Ref,  # []
    num_tokens_ref: Ref,  # []
    keys_ref: Ref,  # [page, position, dim]
    values_ref: Ref,  # [page, position, dim]
    *refs: Ref,  # in the order of `_Refs`
    tile: Tile,
) -> None:
    """Attend from each query row to the visible positions in this program's range."""
    block, split = pl.program_id(0) // tile.num_splits, pl.program_id(0) % tile.num_splits
    start, num_tokens = start_ref[()], num_tokens_ref[()]
    scale_refs, ahead_refs, new_refs, (out_ref, *unfinished_refs), page_refs = _Refs.of(refs, tile)
    head_dim = keys_ref.shape[-1]
    columns = jnp.arange(pl.next_power_of_2(head_dim), dtype=jnp.int32)
    rows = block * tile.num_rows + jnp.arange(tile.num_rows, dtype=jnp.int32)
    tokens, heads = rows // tile.group, rows % tile.group
    positions = start + tokens
    is_row = tokens < tile.width
    place = (tokens[:, None], heads[:, None], columns[None, :])
    mask = is_row[:, None] & (columns < head_dim)[None, :]
    query = plgpu.load(query_ref.at[place], mask=mask, other=0)
    last_visible, last_of_all = positions, None
    for ahead_ref in ahead_refs:
        is_token = tokens < num_tokens
        last_visible = positions + plgpu.load(ahead_ref.at[tokens], mask=is_token, other=0)
        last_of_all = jnp.max(jnp.where(is_token, last_visible, -1))
    first, last, end = _span(block, split, start, num_tokens, last_visible=last_of_all, tile=tile)
    load = functools.partial(_load, like=query, head_dim=head_dim, end=end, tile=tile)
    load_scales = functools.partial(_load_scales, end=end, tile=tile)

    def step(index: Scalar, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        highest, total, weighted = carry  # [row], [row], [row, dim]
        key_positions = index * tile.num_positions + jnp.arange(tile.num_positions, dtype=jnp.int32)
        pages = plgpu.load(table_ref.at[key_positions // tile.page_size], mask=key_positions < end, other=0)
        keys = load(keys_ref, pages, key_positions)
        products = _product(query, keys, is_transposed=True)
        if scale_refs:
            products = products * load_scales(scale_refs[0], pages, key_positions)
        scores = _scores(products, tile)
        window = tile.scoring.sliding_window
        visible = is_visible(positions[:, None], key_positions, window, last_visible[:, None])
        visible &= (key_positions < end)[None, :]
        new_highest = jnp.maximum(highest, jnp.max(jnp.where(visible, scores, MASKED_SCORE), axis=1))
        weights = jnp.where(visible, jnp.exp2(scores - new_highest[:, None]), 0)
        values = load(values_ref, pages, key_positions)
        decay = jnp.exp2(highest - new_highest)
        total = total * decay + jnp.sum(weights, axis=1)
        if scale_refs:
            weights = weights * load_scales(scale_refs[1], pages, key_positions)
        weighted = weighted * decay[:, None] + _product(weights.astype(values.dtype), values)
        return new_highest, total, weighted

    initial = (
        jnp.full(tile.num_rows, MASKED_SCORE, jnp.float32),
        jnp.zeros(tile.num_rows, jnp.float32),
        jnp.zeros(query.shape, jnp.float32),
    )
    if tile.writes:
        is_new = (split == 0) & (num_tokens > 0)
        initial = _write_and_attend(
            query, new_refs, page_refs, table_ref=table_ref, start=start, is_new=is_new, initial=initial, tile=tile
        )
    highest, total, weighted = jax.lax.fori_loop(first, last, step, initial)
    if unfinished_refs:
        for ref, of_row in zip(unfinished_refs, (highest, total), strict=True):
            plgpu.store(ref.at[tokens, heads], of_row, mask=is_row)
    else:
        # A padded query row sees no position: 0 / 1.
        weighted = weighted / jnp.where(total == 0, 1, total)[:, None]
    plgpu.store(out_ref.at[place], weighted.astype(out_ref.dtype), mask=mask)


def _write_and_attend(
    query: Float[Array, "row dim"],
    new_refs: Sequence[Ref],  # [token, dim], key and value
    page_refs: Sequence[Ref],  # [page, position, dim], of keys and values; of their scales, `Tile.has_scales`
    *,
    table_ref: Ref,
    start: Scalar,
    is_new: Bool[Array, ""],
    initial: tuple[Array, ...],
    tile: Tile,
) -> tuple[Array, ...]:
    """Write the key and the value of a sequence's one new token, if this program shall, and attend to it first.

    The loop over positions ends before it, because what one thread has written another may not see yet.
    """
    head_dim = page_refs[0].shape[-1]
    columns = jnp.arange(query.shape[1], dtype=jnp.int32)
    page = plgpu.load(table_ref.at[start // tile.page_size], mask=is_new, other=0)
    position = start % tile.page_size
    key, value = (plgpu.load(ref.at[0, columns], mask=columns < head_dim, other=0) for ref in new_refs)
    if tile.has_scales:
        (stored_key, key_scale), (stored_value, value_scale) = _quantized(key, tile), _quantized(value, tile)
        stored = stored_key, stored_value, key_scale, value_scale
        key, value = _widened(stored_key, query.dtype, tile), _widened(stored_value, query.dtype, tile)
    else:
        stored = key.astype(tile.stored), value.astype(tile.stored)
        key, value, key_scale, value_scale = stored[0].astype(query.dtype), stored[1].astype(query.dtype), 1.0, 1.0
    for ref, vector in zip(page_refs[:2], stored[:2], strict=True):
        plgpu.store(ref.at[page, position, columns], vector, mask=is_new & (columns < head_dim))
    for ref, scale in zip(page_refs[2:], stored[2:], strict=True):
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
    tile: Tile,
) -> Float[Array, "position dim"]:
    """Load the keys or values of positions before `end` in the query's dtype, with zeros elsewhere."""
    columns = jnp.arange(like.shape[1], dtype=jnp.int32)[None, :]
    mask = (key_positions < end)[:, None] & (columns < head_dim)
    vectors = ref.at[pages[:, None], (key_positions % tile.page_size)[:, None], columns]
    return _widened(plgpu.load(vectors, mask=mask, other=0), like.dtype, tile)


def _quantized(vector: Float[Array, " dim"], tile: Tile) -> tuple[Num[Array, " dim"], Float[Array, ""]]:
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


def _widened(stored: Num[Array, "..."], dtype: jnp.dtype, tile: Tile) -> Float[Array, "..."]:
    """Convert stored keys or values, without their scales, to the query's dtype."""
    return (jax.lax.bitcast_convert_type(stored, FP8) if tile.is_fp8 else stored).astype(dtype)


def _load_scales(
    ref: Ref, pages: Int[Array, " position"], key_positions: Int[Array, " position"], *, end: Scalar, tile: Tile
) -> Float[Array, "1 position"]:
    """Load the scales of positions before `end`, with zeros elsewhere."""
    scales = ref.at[pages, key_positions % tile.page_size, jnp.zeros_like(pages)]
    return plgpu.load(scales, mask=key_positions < end, other=0)[None, :]


def _span(
    block: Scalar, split: Scalar, start: Scalar, num_tokens: Scalar, *, last_visible: Scalar | None, tile: Tile
) -> tuple[Scalar, Scalar, Scalar]:
    """Return this program's half-open range of tile steps, and the end of the positions that its query rows read.

    The last visible position of all rows is that of the last token, unless it is given. Steps count from position 0 of
    the sequence; the end is a position.
    """
    first_token = block * tile.num_rows // tile.group
    last_token = jnp.minimum((block * tile.num_rows + tile.num_rows - 1) // tile.group, num_tokens - 1)
    num_read = last_token if tile.writes else last_token + 1
    after = start + num_read if last_visible is None else last_visible + 1
    end = jnp.where(first_token < num_tokens, after, 0)
    begin = 0
    window = tile.scoring.sliding_window
    if window is not None:
        begin = jnp.maximum(start + first_token - window + 1, 0)
    first_step, last_step = begin // tile.num_positions, pl.cdiv(end, tile.num_positions)
    # Splits divide the sequence's positions, not those of the bucket.
    share = pl.cdiv(jnp.maximum(last_step - first_step, 0), tile.num_splits)
    first = first_step + split * share
    return first, jnp.minimum(first + share, last_step), end


def _scores(products: Float[Array, " *row"], tile: Tile) -> Float[Array, " *row"]:
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
