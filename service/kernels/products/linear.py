"""Products with weights, stored [out, in] as in a checkpoint, in the form that is fastest on each device.

XLA delegates float32 products on a CPU to YNNPACK. For `x @ weight.T` with few tokens, YNNPACK first packs the weights,
which takes as long as the product itself. For a batch of `part @ x.T`, it reads the parts of the weight in place.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Float32, Int32, Num, UInt8

from service.device.mesh import DeviceMesh
from service.device.native.library import NativeCode, native_code
from service.device.widened_tokens import NEVER_WIDENED, WidenedTokens, widened_tokens
from service.kernels.limits import serves_int4
from service.kernels.products.grouped_gpu import four_bits_on_gpu
from service.kernels.products.native import (
    Spans,
    most_native_tokens,
    native_bfloat16,
    native_float32,
    native_int4,
    native_int8,
    native_rounded,
)
from service.kernels.products.quantized import FP4, FP8, Fp8Products, GroupedWeight, QuantizedWeight, quantize_tokens

type NumSplits = tuple[tuple[int, int], ...]
"""The number of parts of a weight, as pairs (largest number of tokens, parts); unsplit beyond the last."""

UNSPLIT: NumSplits = ()


class Grouped(StrEnum):
    """How a device computes grouped products where there is no native code."""

    LOOP = "loop"  # one group at a time
    GPU = "gpu"
    TPU = "tpu"


@dataclass(frozen=True)
class Products:
    """How a device computes products; XLA's default unless configured otherwise."""

    num_splits: NumSplits = UNSPLIT  # of wide weights
    native: NativeCode = NativeCode.NONE
    grouped: Grouped = Grouped.LOOP
    rounds_tokens: bool = False  # to bfloat16, where they are multiplied by a weight in it
    quantizes_parts: bool = False  # of tokens to int8, where they are multiplied by a weight in 4 bits
    widened_tokens: WidenedTokens = NEVER_WIDENED  # up to so many are multiplied as they are by weights in 8 bits


# All layers' products of 135M parameters take 6.1 ms split and 6.7 unsplit for one token, 13 and 21 for 8, 38 and 41
# for 64; those of four much wider layers 14 and 19, 21 and 45, 74 and 97. With more tokens packing is negligible.
CPU_NUM_SPLITS: NumSplits = ((8, 8), (64, 2))
# The gate-up weights of 33 layers of 135M parameters take 5.2 ms split and 5.7 unsplit for one token, 5.9 and 6.6 for
# 8, 8.6 and 9.2 for 32 (float32: 13, 20, 42); those of four layers of 8,192 x 2,048 5.6 and 11, 6.3 and 11, 12 and 15.
CPU_QUANTIZED_NUM_SPLITS: NumSplits = ((16, 4),)
FEW_TOKENS = 64  # those of a decode step; more are worth a wide copy of FP4, by the bytes and not measured
WIDENED_ELEMENTS = 256 * 1024  # of a weight widened in parts, so that float32 elements stay in the CPU's cache

PLAIN = Products()
SPLIT = Products(CPU_NUM_SPLITS)


def choose_products(
    mesh: DeviceMesh, dtype: np.dtype, product_dtype: np.dtype | None = None, weight_dtype: np.dtype | None = None
) -> Products:
    """Return how to compute products; several devices each have a shard of a weight.

    Args:
        mesh: the devices.
        dtype: that of activations.
        product_dtype: to which they are rounded where they are multiplied by a weight in it; None for `dtype`.
        weight_dtype: of weights that are not quantized; None for `dtype`.
    """
    if mesh.is_host and dtype == np.float32:
        native, is_narrow = native_code(), weight_dtype == jnp.bfloat16
        return Products(
            CPU_NUM_SPLITS,
            native,
            rounds_tokens=product_dtype == jnp.bfloat16,
            quantizes_parts=is_narrow and native.quantizes_parts,
        )
    return Products(
        # Weights in 4 bits are interleaved for it as they are loaded, whatever the dtype of activations.
        native=native_code() if mesh.is_host else NativeCode.NONE,
        grouped={"gpu": Grouped.GPU, "tpu": Grouped.TPU}.get(mesh.platform, Grouped.LOOP),
        widened_tokens=widened_tokens(mesh.devices[0]) if mesh.platform == "gpu" else NEVER_WIDENED,
    )


def linear(
    x: Float[Array, "*token_in"],
    weight: Float[Array, "*out_in"] | QuantizedWeight | GroupedWeight,
    products: Products,
    *,
    num_in_axes: int = 1,
    dtype: DTypeLike | None = None,
    fp8: Fp8Products = Fp8Products.FUSED,
    spans: Int32[Array, "span 2"] | None = None,
) -> Float[Array, "*token_out"]:
    """Return `x @ weight.T`, summed over the last `num_in_axes` axes of both.

    Args:
        x: tokens, with any number of leading axes.
        weight: unquantized, or in 8 or 4 bits; by int8, tokens are quantized for the product too unless they are few.
        products: how the device computes products.
        num_in_axes: the number of axes to sum over.
        dtype: the dtype of the result; None for that of `x`.
        fp8: how to compute products with FP8.
        spans: first and end of each run of tokens that are wanted; the product of others may be zero. None for all.
    """
    num_tokens, num_in = math.prod(x.shape[:-num_in_axes]), math.prod(x.shape[-num_in_axes:])
    if isinstance(weight, GroupedWeight):
        return _four_bit_product(x, weight, products, num_in_axes=num_in_axes, dtype=dtype, spans=spans)
    if not isinstance(weight, QuantizedWeight):

        def native() -> Float[Array, "*token_out"]:
            in_bfloat16 = native_rounded if products.rounds_tokens else native_bfloat16
            multiply = in_bfloat16 if weight.dtype == jnp.bfloat16 else native_float32
            product = multiply(x.reshape(num_tokens, num_in), weight.reshape(-1, num_in), spans)
            return _as_asked(product, x, weight, num_in_axes, dtype)

        def otherwise() -> Float[Array, "*token_out"]:
            return _product(x, weight.astype(x.dtype), products.num_splits, num_in_axes, dtype)

        return _by_tokens(
            native, otherwise, _native_code(products, x), weight.dtype, num_tokens=num_tokens, spans=spans
        )
    if num_tokens <= products.widened_tokens.of(weight.values.dtype):
        return _few_tokens_product(x, weight, num_in_axes, dtype)
    return _octets_product(x, weight, products, num_in_axes=num_in_axes, dtype=dtype, fp8=fp8, spans=spans)


def _octets_product(
    x: Float[Array, "*token_in"],
    weight: QuantizedWeight,
    products: Products,
    *,
    num_in_axes: int,
    dtype: DTypeLike | None,
    fp8: Fp8Products,
    spans: Int32[Array, "span 2"] | None,
) -> Float[Array, "*token_out"]:
    num_tokens, num_in = math.prod(x.shape[:-num_in_axes]), math.prod(x.shape[-num_in_axes:])
    token_axes = x.ndim - num_in_axes
    scale = jax.lax.expand_dims(weight.scale, range(token_axes))
    if weight.values.dtype == FP8 and fp8 is not Fp8Products.NATIVE:
        widened = _product_in_parts if fp8 is Fp8Products.IN_PARTS else _widened_product
        return (widened(x, weight.values, num_in_axes) * scale).astype(dtype or x.dtype)

    def native() -> Float[Array, "*token_out"]:
        tokens, values = x.reshape(num_tokens, num_in), weight.values.reshape(-1, num_in)
        product = native_int8(tokens, values, weight.scale.reshape(-1), spans)
        return _as_asked(product, x, weight.values, num_in_axes, dtype)

    def otherwise() -> Float[Array, "*token_out"]:
        values, token_scale = quantize_tokens(x, num_in_axes, weight.values.dtype)
        splits = UNSPLIT if products.num_splits == UNSPLIT else CPU_QUANTIZED_NUM_SPLITS
        sums = _quantized_product(values, weight.values, splits, num_in_axes)
        token_scales = jax.lax.expand_dims(token_scale, range(token_axes, sums.ndim))
        return (sums.astype(jnp.float32) * (token_scales * scale)).astype(dtype or x.dtype)

    return _by_tokens(
        native, otherwise, _native_code(products, x), weight.values.dtype, num_tokens=num_tokens, spans=spans
    )


def _native_code(products: Products, x: Float[Array, "*token_in"]) -> NativeCode:
    """Return which C++ products there are of tokens; none but in float32."""
    return products.native if x.dtype == jnp.float32 else NativeCode.NONE


def _by_tokens(
    native: Callable[[], Array],
    otherwise: Callable[[], Array],
    code: NativeCode,
    weight_dtype: np.dtype,
    *,
    num_tokens: int,
    spans: Spans | None,
) -> Array:
    """Return the C++ product or XLA's, by the number of tokens; with spans a step counts those inside as it runs."""
    most = most_native_tokens(code, weight_dtype, num_padded=0 if spans is None else num_tokens)
    if num_tokens <= most:
        return native()
    if spans is None or most == 0:
        return otherwise()
    num_wanted = jnp.sum(jnp.maximum(spans[:, 1] - spans[:, 0], 0))
    return jax.lax.cond(num_wanted <= most, native, otherwise)


def _as_asked(
    product: Float32[Array, "token out"],
    x: Float[Array, "*token_in"],
    weight: Num[Array, "*out_in"],
    num_in_axes: int,
    dtype: DTypeLike | None,
) -> Float[Array, "*token_out"]:
    return product.reshape(*x.shape[:-num_in_axes], *weight.shape[:-num_in_axes]).astype(dtype or x.dtype)


def _quantized_product(
    x: Num[Array, "*token_in"], weight: Num[Array, "*out_in"], num_splits: NumSplits, num_in_axes: int
) -> Num[Array, "*token_out"]:
    sum_dtype = jnp.float32 if weight.dtype == FP8 else jnp.int32
    last_axis = x.ndim - num_in_axes - 1  # of the tokens
    if math.prod(x.shape[: last_axis + 1]) > 1:
        return _product(x, weight, num_splits, num_in_axes, sum_dtype)
    # One row of int8 takes XLA:CPU ten times as long as two, and XLA:GPU would widen an FP8 weight on an L4.
    padded = jnp.concatenate([x, jnp.zeros_like(x)], last_axis)
    return jax.lax.slice_in_dim(_product(padded, weight, num_splits, num_in_axes, sum_dtype), 0, 1, axis=last_axis)


def _few_tokens_product(
    x: Float[Array, "*token_in"], weight: QuantizedWeight, num_in_axes: int, dtype: DTypeLike | None
) -> Float[Array, "*token_out"]:
    """Multiply tokens as they are, so that XLA:GPU makes one kernel that reads the weight in 8 bits and widens it.

    A single token's product is rounded before it is scaled, too, unless float32 is asked for: padded for a sum in
    float32 (see `_product`), it would take two kernels more. Its scaling becomes part of what follows; that of several
    is part of the product, which XLA merges with nothing else but would keep those that read it from being merged.
    """
    is_single = math.prod(x.shape[:-num_in_axes]) == 1
    sum_dtype = x.dtype if is_single and dtype in (None, x.dtype) else jnp.float32
    sums = _product(x, weight.values.astype(x.dtype), UNSPLIT, num_in_axes, sum_dtype)
    scale = jax.lax.expand_dims(weight.scale, range(x.ndim - num_in_axes))
    product = (sums.astype(jnp.float32) * scale).astype(dtype or x.dtype)
    return product if is_single else jax.lax.optimization_barrier(product)


def _widened_product(
    x: Float[Array, "*token_in"], weight: Num[Array, "*out_in"], num_in_axes: int
) -> Float32[Array, "*token_out"]:
    return _product(x, weight.astype(x.dtype), UNSPLIT, num_in_axes, jnp.float32)


def _product_in_parts(
    x: Float[Array, "*token_in"], weight: Num[Array, "*out_in"], num_in_axes: int
) -> Float32[Array, "*token_out"]:
    """Widen some rows of a weight at a time, so that it is never completely in memory in a wider type."""
    token_shape, out_shape = x.shape[:-num_in_axes], weight.shape[:-num_in_axes]
    flat = x.reshape(math.prod(token_shape), -1)
    # XLA:CPU cannot slice FP8: it would widen the whole weight to float16 before the loop.
    weight_bytes = jax.lax.bitcast_convert_type(weight, jnp.uint8).reshape(math.prod(out_shape), -1)

    def product(row: UInt8[Array, " in"]) -> Float32[Array, " token"]:
        return _widened_product(flat, jax.lax.bitcast_convert_type(row, FP8), 1)

    sums = jax.lax.map(product, weight_bytes, batch_size=max(WIDENED_ELEMENTS // weight_bytes.shape[1], 1))
    return sums.T.reshape(*token_shape, *out_shape)


def _four_bit_product(
    x: Float[Array, "*token_in"],
    weight: GroupedWeight,
    products: Products,
    *,
    num_in_axes: int,
    dtype: DTypeLike | None,
    spans: Int32[Array, "span 2"] | None,
) -> Float[Array, "*token_out"]:
    num_tokens, num_in = math.prod(x.shape[:-num_in_axes]), math.prod(x.shape[-num_in_axes:])
    tokens, is_fp4 = x.reshape(num_tokens, num_in), weight.values.dtype == FP4
    is_served = serves_int4(products.native, weight.scale.dtype, weight.values.shape, num_groups=weight.scale.shape[-1])
    if not is_fp4 and is_served:
        scale, zero = weight.scale.reshape(-1, weight.scale.shape[-1]), weight.zero
        zero = None if zero is None else zero.reshape(scale.shape)
        values = weight.values.reshape(-1, num_in)
        product = native_int4(
            tokens.astype(jnp.float32), values, scale, zero, spans, quantizes_tokens=products.quantizes_parts
        )
        return _as_asked(product, x, weight.values, num_in_axes, dtype)
    if is_fp4 and products.grouped is Grouped.GPU and num_tokens <= FEW_TOKENS:
        # XLA:GPU reads no FP4 inside a product: it would first write the whole weight in a wider type.
        flat = jax.tree.map(lambda part: part.reshape(1, -1, part.shape[-1]), weight)
        product = four_bits_on_gpu(tokens, flat, None, dtype=dtype or x.dtype)
        return _as_asked(product, x, weight.values, num_in_axes, dtype)
    return _grouped_product(x, weight, products.num_splits, num_in_axes, dtype)


def _grouped_product(
    x: Float[Array, "*token_in"],
    weight: GroupedWeight,
    num_splits: NumSplits,
    num_in_axes: int,
    dtype: DTypeLike | None,
) -> Float[Array, "*token_out"]:
    if num_splits == UNSPLIT and weight.scale.shape[-1] > 1:
        return _product(x, weight.widened(x.dtype), UNSPLIT, num_in_axes, dtype)
    if num_splits == UNSPLIT:  # a group of all columns, whose scale waits until they are summed
        sums = _product(x, weight.values.astype(x.dtype), UNSPLIT, num_in_axes, jnp.float32)
        if weight.zero is not None:
            of_tokens = jnp.sum(x, -1, jnp.float32)
            sums = sums - jnp.tensordot(of_tokens, weight.zero[..., 0].astype(jnp.float32), 0)
        scale = jax.lax.expand_dims(weight.scale[..., 0].astype(jnp.float32), range(x.ndim - num_in_axes))
        return (sums * scale).astype(dtype or x.dtype)
    # XLA:CPU would widen the whole weight in memory first.
    tokens, num_in = x.reshape(-1, weight.values.shape[-1]), weight.values.shape[-1]

    def product(row: GroupedWeight) -> Float32[Array, " token"]:
        return _product(tokens, row.widened(x.dtype), UNSPLIT, 1, jnp.float32)

    rows = jax.tree.map(lambda part: part.reshape(-1, part.shape[-1]), weight)
    sums = jax.lax.map(product, rows, batch_size=max(WIDENED_ELEMENTS // num_in, 1))
    return _as_asked(sums.T, x, weight.values, num_in_axes, dtype)


def _product(
    x: Num[Array, "*token_in"],
    weight: Num[Array, "*out_in"],
    num_splits: NumSplits,
    num_in_axes: int,
    dtype: DTypeLike | None,
) -> Num[Array, "*token_out"]:
    token_shape, out_shape = x.shape[:-num_in_axes], weight.shape[:-num_in_axes]
    num_tokens, num_out = math.prod(token_shape), math.prod(out_shape)
    max_parts = next((parts for most_tokens, parts in num_splits if num_tokens <= most_tokens), 1)
    num_parts = math.gcd(max_parts, num_out)
    if num_splits == UNSPLIT:  # an axis of the weight may be sharded, so do not reshape it
        axes = tuple(range(-num_in_axes, 0))
        if token_shape != (1,) or dtype in (None, x.dtype):
            return jnp.tensordot(x, weight, (axes, axes), preferred_element_type=dtype)
        # To multiply a single token, XLA:GPU would first widen the whole weight to the type of the result.
        two = jnp.pad(x, ((0, 1), *((0, 0),) * num_in_axes))
        return jnp.tensordot(two, weight, (axes, axes), preferred_element_type=dtype)[:1]
    if num_parts == 1:
        # XLA:CPU would transpose a weight with more axes in every step.
        flat = jnp.tensordot(
            x.reshape(num_tokens, -1), weight.reshape(num_out, -1), (1, 1), preferred_element_type=dtype
        )
        return flat.reshape(*token_shape, *out_shape)
    split = weight.reshape(num_parts, num_out // num_parts, -1)
    columns = jnp.broadcast_to(x.reshape(num_tokens, -1).T[None], (num_parts, split.shape[2], num_tokens))
    sums = jnp.einsum("poi,pit->pot", split, columns, preferred_element_type=dtype)
    return sums.reshape(num_out, num_tokens).T.reshape(*token_shape, *out_shape)
