"""One program of the GPU's attention: some rows of queries of one head meet a span of their sequence's positions.

Masks select. A key or value outside a sequence's tokens is never loaded, and a score that a row may not see is replaced
before anything is made of it: what is no number there stays there.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from service.kernels.attention import Scoring
from service.kernels.reference import MASKED_SCORE, is_visible

Ref = Any  # a block of an array that a kernel reads or writes
LOG2_E = math.log2(math.e)  # exp(x) = exp2(x * LOG2_E), and exp2 is what the chip has


@dataclass(frozen=True)
class Tile:
    """What all programs of one call have in common."""

    num_rows: int  # query rows of one program
    num_positions: int  # key positions of one turn of its loop
    num_splits: int  # programs that share the context of the same rows
    group: int  # query heads of a key-value head: so many rows are one token's
    page_size: int
    scoring: Scoring


def attend_tile(  # noqa: PLR0917 (Pallas gives them by position)
    query_ref: Ref,  # [row, dim]
    keys_ref: Ref,  # [page, position, head_dim]
    values_ref: Ref,  # [page, position, head_dim]
    table_ref: Ref,  # [page], of this sequence
    start_ref: Ref,  # []
    num_tokens_ref: Ref,  # []
    out_ref: Ref,  # [row, dim]
    *unfinished_refs: Ref,  # the highest score and the sum of each row, [row]; only if the context is split
    tile: Tile,
) -> None:
    """Attend from each row to what it sees of this program's span. A tile's dim is head_dim and what pads it."""
    block, split = pl.program_id(0) // tile.num_splits, pl.program_id(0) % tile.num_splits
    start, num_tokens = start_ref[()], num_tokens_ref[()]
    rows = block * tile.num_rows + jnp.arange(tile.num_rows, dtype=jnp.int32)
    positions = start + rows // tile.group
    first, last, end = _span(block, split, start, num_tokens, tile)
    query = query_ref[...]
    head_dim = keys_ref.shape[-1]
    columns = jnp.arange(query.shape[1], dtype=jnp.int32)[None, :]

    def load(ref: Ref, pages: jax.Array, key_positions: jax.Array) -> jax.Array:
        mask = (key_positions < end)[:, None] & (columns < head_dim)
        vectors = ref.at[pages[:, None], (key_positions % tile.page_size)[:, None], columns]
        return plgpu.load(vectors, mask=mask, other=0)

    def turn(index: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        highest, total, weighted = carry
        key_positions = index * tile.num_positions + jnp.arange(tile.num_positions, dtype=jnp.int32)
        pages = plgpu.load(table_ref.at[key_positions // tile.page_size], mask=key_positions < end, other=0)
        keys = load(keys_ref, pages, key_positions)
        scores = _scores(query, keys, tile)
        visible = is_visible(positions[:, None], key_positions, tile.scoring.sliding_window)
        new_highest = jnp.maximum(highest, jnp.max(jnp.where(visible, scores, MASKED_SCORE), axis=1))
        weights = jnp.where(visible, jnp.exp2(scores - new_highest[:, None]), 0)
        values = load(values_ref, pages, key_positions)
        fading = jnp.exp2(highest - new_highest)
        total = total * fading + jnp.sum(weights, axis=1)
        weighted = weighted * fading[:, None] + _product(weights.astype(values.dtype), values)
        return new_highest, total, weighted

    nothing = (
        jnp.full(tile.num_rows, MASKED_SCORE, jnp.float32),
        jnp.zeros(tile.num_rows, jnp.float32),
        jnp.zeros(query.shape, jnp.float32),
    )
    highest, total, weighted = jax.lax.fori_loop(first, last, turn, nothing)
    if unfinished_refs:
        highest_ref, total_ref = unfinished_refs
        highest_ref[...], total_ref[...] = highest, total
    else:
        # A row of padding has seen nothing: 0 / 1.
        weighted = weighted / jnp.where(total == 0, 1, total)[:, None]
    out_ref[...] = weighted.astype(out_ref.dtype)


def _span(
    block: jax.Array, split: jax.Array, start: jax.Array, num_tokens: jax.Array, tile: Tile
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the first and last turn of this program, and the position that ends what any of its rows sees."""
    first_token = block * tile.num_rows // tile.group
    last_token = jnp.minimum((block * tile.num_rows + tile.num_rows - 1) // tile.group, num_tokens - 1)
    end = jnp.where(first_token < num_tokens, start + last_token + 1, 0)
    begin = 0
    window = tile.scoring.sliding_window
    if window is not None:
        begin = jnp.maximum(start + first_token - window + 1, 0)
    first_turn, last_turn = begin // tile.num_positions, pl.cdiv(end, tile.num_positions)
    # Splits share what there is, not what the bucket could hold.
    share = pl.cdiv(jnp.maximum(last_turn - first_turn, 0), tile.num_splits)
    first = first_turn + split * share
    return first, jnp.minimum(first + share, last_turn), end


def _scores(query: jax.Array, keys: jax.Array, tile: Tile) -> jax.Array:
    """Return scores in units of log 2."""
    scores = _product(query, keys, is_transposed=True)
    scale, soft_cap = tile.scoring.scale, tile.scoring.soft_cap
    if soft_cap is None:
        return scores * (scale * LOG2_E)
    return jnp.tanh(scores * (scale / soft_cap)) * (soft_cap * LOG2_E)


def _product(left: jax.Array, right: jax.Array, *, is_transposed: bool = False) -> jax.Array:
    """Return a matrix product in float32; float32 factors are not rounded to TF32."""
    precision = jax.lax.Precision.HIGHEST if left.dtype == jnp.float32 else None
    return plgpu.dot(left, right, trans_b=is_transposed, precision=precision)
