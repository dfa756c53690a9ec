"""A kernel that joins the splits of a GPU's attention (flash-decoding), and leaves what has one split as it is."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float, Int

from service.kernels.attention import QueryHeads
from service.kernels.gpu_tile import LOG2_E, Ref, Scalar, SplitParts, of_kv_head
from service.kernels.gpu_work import WorkTile
from service.kernels.reference import MASKED_SCORE

SPLITS_AT_ONCE = 16  # whose values one program loads together
NUM_WARPS = 4


class JoinOperands(NamedTuple):
    """What is joined, whole arrays; a program sees one KV head of each."""

    attended: Ref  # [seq, token, kv_head, group, dim], results of blocks with one split, and memory for the others
    parts: SplitParts
    ends: Ref  # [block], the list
    sinks: Ref | None  # [kv_head, group]


def join_splits(operands: JoinOperands, tile: WorkTile, *, interpret: bool) -> QueryHeads:
    """Return the results of all blocks.

    Args:
        operands: of a call of the kernel.
        tile: the constants of that call.
        interpret: emulate the kernel without a GPU, for tests.
    """
    attended, parts = operands.attended, operands.parts
    of_query = of_kv_head(attended, 2)
    specs = JoinOperands(
        attended=of_query,
        parts=jax.tree.map(lambda part: of_kv_head(part, 1), parts),
        ends=of_kv_head(operands.ends),
        sinks=None if operands.sinks is None else of_kv_head(operands.sinks, 0),
    )
    return pl.pallas_call(
        functools.partial(_join_row, tile=tile),
        grid=(len(operands.ends), attended.shape[2], parts.weighted.shape[2]),
        in_specs=(specs,),
        out_specs=of_query,
        out_shape=jax.ShapeDtypeStruct(attended.shape, attended.dtype),
        input_output_aliases={0: 0},
        compiler_params=plgpu.CompilerParams(num_warps=NUM_WARPS),
        interpret=interpret,
        name="join_splits",
    )(operands)


def _join_row(operands: JoinOperands, out_ref: Ref, *, tile: WorkTile) -> None:
    """Join the splits of one query row of a block, unless that has one split."""
    block, row = pl.program_id(0), pl.program_id(2)
    parts, ends, sinks = operands.parts, operands.ends, operands.sinks
    before = jnp.where(block > 0, ends[jnp.maximum(block - 1, 0)], 0)
    num_splits = ends[block] - before
    row_of_seq = block % tile.num_blocks * tile.num_rows + row
    token, head = row_of_seq // tile.group, row_of_seq % tile.group
    head_dim = out_ref.shape[-1]
    columns = jnp.arange(pl.next_power_of_2(head_dim), dtype=jnp.int32)

    def load(ref: Ref, splits: Int[Array, " split"], other: float) -> Float[Array, " split"]:
        return plgpu.load(ref.at[before + splits, row], mask=splits < num_splits, other=other)

    @pl.when((num_splits > 1) & (token < tile.width))
    def _() -> None:
        splits = jnp.arange(pl.next_power_of_2(tile.most_splits), dtype=jnp.int32)
        highest = load(parts.highest, splits, MASKED_SCORE)
        highest_of_all = jnp.max(highest)
        sink = None if sinks is None else sinks[head].astype(jnp.float32) * LOG2_E
        if sink is not None:
            highest_of_all = jnp.maximum(highest_of_all, sink)
        total = jnp.sum(load(parts.totals, splits, 0.0) * jnp.exp2(highest - highest_of_all))
        if sink is not None:
            total = total + jnp.exp2(sink - highest_of_all)

        def add(turn: Scalar, joined: Float[Array, " dim"]) -> Float[Array, " dim"]:
            splits = turn * SPLITS_AT_ONCE + jnp.arange(SPLITS_AT_ONCE, dtype=jnp.int32)
            shares = jnp.exp2(load(parts.highest, splits, MASKED_SCORE) - highest_of_all)
            mask = (splits < num_splits)[:, None] & (columns < head_dim)[None, :]
            values = plgpu.load(
                parts.weighted.at[(before + splits)[:, None], row, columns[None, :]], mask=mask, other=0
            )
            return joined + jnp.sum(values * shares[:, None], axis=0)

        turns = pl.cdiv(num_splits, SPLITS_AT_ONCE)
        joined = jax.lax.fori_loop(jnp.int32(0), turns, add, jnp.zeros(columns.shape, jnp.float32))
        joined = joined / jnp.where(total == 0, 1, total)
        place = out_ref.at[block // tile.num_blocks, token, head, columns]
        plgpu.store(place, joined.astype(out_ref.dtype), mask=columns < head_dim)
