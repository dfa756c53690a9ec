"""Grouped products on a GPU: a program multiplies a tile of one group's rows by a tile of its weight's rows.

Groups without rows have no tiles, so their weights are not read. Weights in 8 and 4 bits are widened inside the
product.
Why Pallas on Triton: see `service/kernels/gpu.py`.
Source: Gale et al. 2022, arXiv:2211.15841 (MegaBlocks).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, DTypeLike, Float, Int32, Num

from service.kernels.products.quantized import FP8, GroupedWeight
from service.kernels.running_sum import running_sum

Ref = Any  # an array that a kernel reads or writes
# Such that two stages of both tiles fit into an L4's 99 KiB of shared memory; not tuned.
FEWEST_ROWS, MOST_ROWS, OUT_ROWS, STEP = 16, 64, 64, 64
NUM_WARPS, NUM_STAGES = 4, 2


def grouped_on_gpu(
    x: Float[Array, "row in"],
    weight: Num[Array, "group out in"],
    sizes: Int32[Array, " group"],
    *,
    interpret: bool = False,
) -> Float[Array, "row out"]:
    """Return the float32 products of rows, sorted by group, with the weight of their group.

    Args:
        x: the rows.
        weight: in any type; the product is one of `x`'s.
        sizes: the number of rows of each group.
        interpret: emulate the kernel without a GPU, for tests.
    """
    (num_rows, num_in), (num_groups, num_out, _) = x.shape, weight.shape
    of_group = pl.next_power_of_2(pl.cdiv(num_rows, num_groups))
    tile_rows = min(max(of_group, FEWEST_ROWS), MOST_ROWS)
    groups, first, end = _tiles(sizes, num_rows, tile_rows)
    is_fp8 = weight.dtype == FP8
    # Triton has no masked loads of FP8.
    stored = jax.lax.bitcast_convert_type(weight, jnp.uint8) if is_fp8 else weight
    return pl.pallas_call(
        functools.partial(_multiply_tile, tile_rows=tile_rows, num_in=num_in, num_out=num_out, is_fp8=is_fp8),
        grid=(len(groups), pl.cdiv(num_out, OUT_ROWS)),
        out_shape=jax.ShapeDtypeStruct((num_rows, num_out), jnp.float32),
        compiler_params=plgpu.CompilerParams(num_warps=NUM_WARPS, num_stages=NUM_STAGES),
        interpret=interpret,
        name="grouped_linear",
    )(x, stored, groups, first, end)


def four_bits_on_gpu(
    x: Float[Array, "row in"],
    weight: GroupedWeight,
    sizes: Int32[Array, " group"] | None,
    *,
    dtype: DTypeLike = jnp.float32,
    interpret: bool = False,
) -> Float[Array, "row out"]:
    """Return the products of rows, sorted by group, with the weight of their group in 4 bits, summed in float32.

    Args:
        x: the rows.
        weight: [group, out, in], with an even number of columns.
        sizes: the number of rows of each group; None if all are of the only one.
        dtype: the dtype of the result.
        interpret: emulate the kernel without a GPU, for tests.
    """
    (num_rows, num_in), (num_groups, num_out, _) = x.shape, weight.values.shape
    of_group = pl.next_power_of_2(pl.cdiv(num_rows, num_groups))
    tile_rows = min(max(of_group, FEWEST_ROWS), MOST_ROWS)
    groups, first, end = _tiles(sizes, num_rows, tile_rows)
    # Two columns are a byte, in memory too: nothing is copied.
    pairs = jax.lax.bitcast_convert_type(weight.values.reshape(num_groups, num_out, -1, 2), jnp.uint8)
    factors = [weight.scale, *([] if weight.zero is None else [weight.zero])]
    return pl.pallas_call(
        functools.partial(
            _multiply_tile_of_pairs,
            tile_rows=tile_rows,
            size=(num_in, num_out),
            of_factor=num_in // weight.scale.shape[-1],
            is_integer=weight.values.dtype == jnp.int4,
            has_zeros=weight.zero is not None,
        ),
        grid=(len(groups), pl.cdiv(num_out, OUT_ROWS)),
        out_shape=jax.ShapeDtypeStruct((num_rows, num_out), dtype),
        compiler_params=plgpu.CompilerParams(num_warps=NUM_WARPS, num_stages=NUM_STAGES),
        interpret=interpret,
        name="grouped_linear_4_bits",
    )(x, pairs, groups, first, end, *factors)


def _tiles(
    sizes: Int32[Array, " group"] | None, num_rows: int, tile_rows: int
) -> tuple[Int32[Array, " tile"], Int32[Array, " tile"], Int32[Array, " tile"]]:
    """Return the group of each tile, its first row, and the row after the last of the group; spare tiles are empty."""
    if sizes is None:
        starts = np.arange(0, num_rows, tile_rows, dtype=np.int32)  # literals, which no kernel computes
        return jnp.asarray(np.zeros_like(starts)), jnp.asarray(starts), jnp.asarray(np.full_like(starts, num_rows))
    num_tiles = min(num_rows, len(sizes)) + num_rows // tile_rows
    of_group = (sizes + tile_rows - 1) // tile_rows
    ends, row_ends = running_sum(of_group), running_sum(sizes)
    tile = jnp.arange(num_tiles, dtype=jnp.int32)
    # Not `jnp.searchsorted`, which loops.
    num_before = jnp.sum(ends[None, :] <= tile[:, None], axis=1, dtype=jnp.int32)
    group = jnp.minimum(num_before, len(sizes) - 1)
    first = row_ends[group] - sizes[group] + (tile - ends[group] + of_group[group]) * tile_rows
    return group, first, jnp.where(tile < ends[-1], row_ends[group], first)


def _multiply_tile(  # noqa: PLR0917 (Pallas gives them by position)
    x_ref: Ref,  # [row, in]
    weight_ref: Ref,  # [group, out, in]
    group_ref: Ref,  # [tile]
    first_ref: Ref,  # [tile]
    end_ref: Ref,  # [tile]
    out_ref: Ref,  # [row, out]
    *,
    tile_rows: int,
    num_in: int,
    num_out: int,
    is_fp8: bool,
) -> None:
    tile = pl.program_id(0)
    group, first, end = group_ref[tile], first_ref[tile], end_ref[tile]
    rows = first + jnp.arange(tile_rows, dtype=jnp.int32)
    columns = pl.program_id(1) * OUT_ROWS + jnp.arange(OUT_ROWS, dtype=jnp.int32)
    is_row, is_column = (rows < end)[:, None], (columns < num_out)[:, None]

    def step(index: Int32[Array, ""], sums: Float[Array, "row out"]) -> Float[Array, "row out"]:
        values = index * STEP + jnp.arange(STEP, dtype=jnp.int32)
        is_value = (values < num_in)[None, :]
        x = plgpu.load(x_ref.at[rows[:, None], values[None, :]], mask=is_row & is_value, other=0)
        place = weight_ref.at[group, columns[:, None], values[None, :]]
        weight = plgpu.load(place, mask=is_column & is_value, other=0)
        wide = jax.lax.bitcast_convert_type(weight, FP8) if is_fp8 else weight
        precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
        return sums + plgpu.dot(x, wide.astype(x.dtype), trans_b=True, precision=precision)

    # As arrays: Triton's loop would take a Python integer as another type than the result of a choice.
    num_steps = jnp.where(first < end, jnp.int32(pl.cdiv(num_in, STEP)), jnp.int32(0))
    sums = jax.lax.fori_loop(jnp.int32(0), num_steps, step, jnp.zeros((tile_rows, OUT_ROWS), jnp.float32))
    plgpu.store(out_ref.at[rows[:, None], columns[None, :]], sums, mask=is_row & is_column.T)


def _multiply_tile_of_pairs(  # noqa: PLR0917 (Pallas gives them by position)
    x_ref: Ref,  # [row, in]
    pair_ref: Ref,  # [group, out, in / 2]: two columns in a byte, the earlier one in the lower bits
    group_ref: Ref,  # [tile]
    first_ref: Ref,  # [tile]
    end_ref: Ref,  # [tile]
    scale_ref: Ref,  # [group, out, in / of_factor]
    *refs: Ref,  # zero points, as scales, if there are some; [row, out]
    tile_rows: int,
    size: tuple[int, int],
    of_factor: int,
    is_integer: bool,
    has_zeros: bool,
) -> None:
    (num_in, num_out), tile = size, pl.program_id(0)
    group, first, end = group_ref[tile], first_ref[tile], end_ref[tile]
    rows = first + jnp.arange(tile_rows, dtype=jnp.int32)
    columns = pl.program_id(1) * OUT_ROWS + jnp.arange(OUT_ROWS, dtype=jnp.int32)
    is_row, is_column = (rows < end)[:, None], (columns < num_out)[:, None]
    widen = _integer if is_integer else _fp4

    def step(index: Int32[Array, ""], sums: Float[Array, "row out"]) -> Float[Array, "row out"]:
        pairs = index * STEP + jnp.arange(STEP, dtype=jnp.int32)
        is_pair = (2 * pairs < num_in)[None, :]
        octets = plgpu.load(pair_ref.at[group, columns[:, None], pairs[None, :]], mask=is_column & is_pair, other=0)
        for place, bits in enumerate((octets.astype(jnp.int32) & 15, octets.astype(jnp.int32) >> 4)):
            values = 2 * pairs + place
            factor_at = (group, columns[:, None], (values // of_factor)[None, :])
            x = plgpu.load(x_ref.at[rows[:, None], values[None, :]], mask=is_row & is_pair, other=0)
            scale = plgpu.load(scale_ref.at[factor_at], mask=is_column & is_pair, other=0)
            wide = widen(bits)
            if has_zeros:
                wide = wide - plgpu.load(refs[0].at[factor_at], mask=is_column & is_pair, other=0).astype(jnp.float32)
            wide = (wide * scale.astype(jnp.float32)).astype(x.dtype)
            precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
            sums += plgpu.dot(x, wide, trans_b=True, precision=precision)
        return sums

    num_steps = jnp.where(first < end, jnp.int32(pl.cdiv(num_in, 2 * STEP)), jnp.int32(0))
    sums = jax.lax.fori_loop(jnp.int32(0), num_steps, step, jnp.zeros((tile_rows, OUT_ROWS), jnp.float32))
    out = sums.astype(refs[-1].dtype)
    plgpu.store(refs[-1].at[rows[:, None], columns[None, :]], out, mask=is_row & is_column.T)


def _integer(bits: Int32[Array, "out in"]) -> Float[Array, "out in"]:
    """Return the numbers of int4."""
    return ((bits ^ 8) - 8).astype(jnp.float32)


def _fp4(bits: Int32[Array, "out in"]) -> Float[Array, "out in"]:
    """Return the numbers of float4_e2m1fn: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and the same below zero."""
    size = bits & 7
    halves = size + jnp.maximum(size - 4, 0) + 2 * jnp.maximum(size - 6, 0)
    return jnp.where(bits > 7, -halves, halves).astype(jnp.float32) * 0.5
