"""Grouped products: rows that are sorted by group, each multiplied by the weight of its group."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int32

from service.kernels.products.grouped_gpu import four_bits_on_gpu, grouped_on_gpu
from service.kernels.products.grouped_tpu import SUPPORTED, grouped_on_tpu
from service.kernels.products.linear import Grouped, Products, linear
from service.kernels.products.native import native_grouped, native_grouped_int8
from service.kernels.products.quantized import FP8, Fp8Products, GroupedWeight, QuantizedWeight


def grouped_linear(
    x: Float[Array, "row in"],
    weight: Float[Array, "group *out in"] | QuantizedWeight | GroupedWeight,
    sizes: Int32[Array, " group"],
    products: Products,
    *,
    dtype: DTypeLike | None = None,
    fp8: Fp8Products = Fp8Products.FUSED,
) -> Float[Array, "row *out"]:
    """Return the products of rows with the weight of their group.

    Args:
        x: the rows of the first group, then those of the second, and so on.
        weight: of every group; unquantized, or in 8 or 4 bits.
        sizes: the number of rows of each group. Rows after those of all groups have an undefined product.
        products: how the device computes products.
        dtype: the dtype of the result; None for that of `x`.
        fp8: how to compute products with FP8.
    """
    dtype = dtype or x.dtype
    if isinstance(weight, GroupedWeight):
        return _grouped_in_4_bits(x, weight, sizes, products, dtype)
    values, scale = weight if isinstance(weight, QuantizedWeight) else (weight, None)
    flat, shape = values.reshape(len(values), -1, values.shape[-1]), (len(x), *values.shape[1:-1])
    if products.grouped is Grouped.GPU:
        product = grouped_on_gpu(x, flat, sizes)
        if scale is not None:
            of_row = jnp.repeat(jnp.arange(len(sizes)), sizes, total_repeat_length=len(x))
            product = product * scale.reshape(len(scale), -1)[of_row]
        return product.reshape(shape).astype(dtype)
    if products.grouped is Grouped.TPU and scale is None and {x.dtype, values.dtype} <= SUPPORTED:
        return grouped_on_tpu(x, flat, sizes).reshape(shape).astype(dtype)
    if products.native.has_products and x.dtype == jnp.float32:
        if values.dtype in (jnp.float32, jnp.bfloat16):
            product = native_grouped(x, flat, sizes, rounds_tokens=products.rounds_tokens)
            return product.reshape(shape).astype(dtype)
        if values.dtype == jnp.int8 and scale is not None:
            return native_grouped_int8(x, flat, sizes, scale.reshape(len(scale), -1)).reshape(shape).astype(dtype)
    return _one_group_at_a_time(x, weight, sizes, products, dtype=dtype, fp8=fp8)


def _grouped_in_4_bits(
    x: Float[Array, "row in"],
    weight: GroupedWeight,
    sizes: Int32[Array, " group"],
    products: Products,
    dtype: DTypeLike,
) -> Float[Array, "row *out"]:
    if products.grouped is Grouped.GPU:
        flat = jax.tree.map(lambda part: part.reshape(len(part), -1, part.shape[-1]), weight)
        product = four_bits_on_gpu(x, flat, sizes, dtype=dtype)
        return product.reshape(len(x), *weight.values.shape[1:-1])
    return _one_group_at_a_time(x, weight, sizes, products, dtype=dtype, fp8=Fp8Products.FUSED)


def _one_group_at_a_time(
    x: Float[Array, "row in"],
    weight: Float[Array, "group *out in"] | QuantizedWeight | GroupedWeight,
    sizes: Int32[Array, " group"],
    products: Products,
    *,
    dtype: DTypeLike,
    fp8: Fp8Products,
) -> Float[Array, "row *out"]:
    """Multiply all rows by the weight of each group that has any; the weights of others are not read."""
    values = weight.values if isinstance(weight, QuantizedWeight | GroupedWeight) else weight
    is_fp8 = values.dtype == FP8
    if is_fp8 and isinstance(weight, QuantizedWeight):
        # XLA:CPU cannot slice FP8: it would widen all weights to float16.
        weight = weight._replace(values=jax.lax.bitcast_convert_type(values, jnp.uint8))
    ends = jnp.cumsum(sizes)
    row = jax.lax.broadcasted_iota(jnp.int32, (len(x), *(1,) * (values.ndim - 2)), 0)

    def add(group: Int32[Array, ""], sums: Float[Array, "row *out"]) -> Float[Array, "row *out"]:
        of_group = jax.tree.map(lambda part: jax.lax.dynamic_index_in_dim(part, group, keepdims=False), weight)
        if is_fp8:
            of_group = of_group._replace(values=jax.lax.bitcast_convert_type(of_group.values, FP8))
        product = linear(x, of_group, products, dtype=dtype, fp8=fp8)
        return jnp.where((row >= ends[group] - sizes[group]) & (row < ends[group]), product, sums)

    def step(group: Int32[Array, ""], sums: Float[Array, "row *out"]) -> Float[Array, "row *out"]:
        return jax.lax.cond(sizes[group] > 0, add, lambda group, sums: sums, group, sums)

    initial = jnp.zeros((len(x), *values.shape[1:-1]), dtype)
    return jax.lax.fori_loop(0, len(sizes), step, initial)
