"""One program of the GPU attention kernel: a tile of query rows of a KV head over a range of the sequence's positions.

Masking uses selection: keys and values outside a sequence's tokens are never loaded, and masked scores are replaced
before use, so NaNs at masked positions have no effect.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float, Int

from service.kernels.attention import Scoring
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
    # Programs that share the context of the same query rows. With several, each also outputs the highest score and the
    # sum of the weights of each row, [row].
    num_splits: int
    group: int  # query heads of a KV head, and so query rows of one token
    page_size: int  # token positions
    scoring: Scoring
    has_scales: bool = False  # whether keys and values have scales, [page, position, 1]
    is_fp8: bool = False  # whether keys and values are FP8, passed as uint8


def attend_tile(  # noqa: PLR0917 (Pallas gives them by position)
    query_ref: Ref,  # [row, dim]
    keys_ref: Ref,  # [page, position, head_dim]
    values_ref: Ref,  # [page, position, head_dim]
    table_ref: Ref,  # [page], of this sequence
    start_ref: Ref,  # []
    num_tokens_ref: Ref,  # []
    *refs: Ref,  # see `Tile.has_scales`; then the result, [row, dim]; then see `Tile.num_splits`
    tile: Tile,
) -> None:
    """Attend from each query row to the visible positions in this program's range; dim is head_dim plus padding."""
    block, split = pl.program_id(0) // tile.num_splits, pl.program_id(0) % tile.num_splits
    start, num_tokens = start_ref[()], num_tokens_ref[()]
    rows = block * tile.num_rows + jnp.arange(tile.num_rows, dtype=jnp.int32)
    positions = start + rows // tile.group
    first, last, end = _span(block, split, start, num_tokens, tile)
    query = query_ref[...]
    head_dim = keys_ref.shape[-1]
    scale_refs, (out_ref, *unfinished_refs) = (refs[:2], refs[2:]) if tile.has_scales else ((), refs)
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
        visible = is_visible(positions[:, None], key_positions, tile.scoring.sliding_window)
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
    highest, total, weighted = jax.lax.fori_loop(first, last, step, initial)
    if unfinished_refs:
        highest_ref, total_ref = unfinished_refs
        highest_ref[...], total_ref[...] = highest, total
    else:
        # A padded query row sees no position: 0 / 1.
        weighted = weighted / jnp.where(total == 0, 1, total)[:, None]
    out_ref[...] = weighted.astype(out_ref.dtype)


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
    loaded = plgpu.load(vectors, mask=mask, other=0)
    if tile.is_fp8:
        loaded = jax.lax.bitcast_convert_type(loaded, FP8)
    return loaded.astype(like.dtype)


def _load_scales(
    ref: Ref, pages: Int[Array, " position"], key_positions: Int[Array, " position"], *, end: Scalar, tile: Tile
) -> Float[Array, "1 position"]:
    """Load the scales of positions before `end`, with zeros elsewhere."""
    scales = ref.at[pages, key_positions % tile.page_size, jnp.zeros_like(pages)]
    return plgpu.load(scales, mask=key_positions < end, other=0)[None, :]


def _span(block: Scalar, split: Scalar, start: Scalar, num_tokens: Scalar, tile: Tile) -> tuple[Scalar, Scalar, Scalar]:
    """Return this program's half-open range of tile steps, and the end of the positions that its query rows see.

    Steps count from position 0 of the sequence; the end is a position.
    """
    first_token = block * tile.num_rows // tile.group
    last_token = jnp.minimum((block * tile.num_rows + tile.num_rows - 1) // tile.group, num_tokens - 1)
    end = jnp.where(first_token < num_tokens, start + last_token + 1, 0)
    begin = 0
    window = tile.scoring.sliding_window
    if window is not None:
        begin = jnp.maximum(start + first_token - window + 1, 0)
    first_step, last_step = begin // tile.num_positions, pl.cdiv(end, tile.num_positions)
    # Splits divide the sequence's positions, not those of the bucket.
    share = pl.cdiv(jnp.maximum(last_step - first_step, 0), tile.num_splits)
    first = first_step + split * share
    return first, jnp.minimum(first + share, last_step), end


def _scores(products: Float[Array, "row position"], tile: Tile) -> Float[Array, "row position"]:
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
