"""Products on a CPU in C++; see `service/device/native`.

XLA quantizes tokens, multiplies and scales in separate loops, has no fast product of a single token, and widens a
bfloat16 weight in memory. The C++ products read a weight once, in the dtype it is stored in.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, BFloat16, Float, Float32, Int4, Int8, Int32

from service.device.native.library import (
    ADAPTERS_TARGET,
    BFLOAT16_TARGET,
    FLOAT32_TARGET,
    GROUPED_BFLOAT16_TARGET,
    GROUPED_FLOAT32_TARGET,
    GROUPED_INT8_TARGET,
    GROUPED_ROUNDED_TARGET,
    INT4_TARGET,
    INT8_TARGET,
    QUANTIZED_INT4_TARGET,
    ROUNDED_TARGET,
    NativeCode,
    register_native_calls,
)
from service.kernels.limits import skips_padding

type Spans = Int32[Array, "span 2"]  # first and end of each run of tokens, in order
NO_LIMIT = 2**31 - 1  # of the tokens of a step
# With more tokens, XLA's products, which pack weights, are at least as fast. Measured on Zen 4 with AVX-512, on Zen 3
# with AVX2, where XLA's int8 products take 1 to 5 times as long; not measured on AMX, where XLA's int8 products use
# matrix units, nor on Arm, where products are those of AVX2 in vectors of half the size.
MAX_FLOAT32_TOKENS: dict[NativeCode, int] = {
    **dict.fromkeys((NativeCode.AVX2, NativeCode.AVX512, NativeCode.AVX512_BF16, NativeCode.AMX), 512),
    NativeCode.NEON: 32,
}
# The speed of C++ products of the most tokens ÷ that of XLA's, where it was measured and XLA's are faster.
FLOAT32_SPEED: dict[NativeCode, float] = {NativeCode.AVX2: 0.8}
MAX_INT8_TOKENS: dict[NativeCode, int] = {
    **{NativeCode.AVX2: NO_LIMIT, NativeCode.AVX512: 256, NativeCode.AVX512_BF16: 256, NativeCode.AMX: 16},
    NativeCode.NEON: 8,
}
MAX_TOKENS: dict[np.dtype, dict[NativeCode, int]] = {
    np.dtype(np.float32): MAX_FLOAT32_TOKENS,
    np.dtype(np.int8): MAX_INT8_TOKENS,
    np.dtype(jnp.bfloat16): dict.fromkeys(NativeCode, NO_LIMIT),  # XLA would widen it in memory
}


def native_float32(
    x: Float32[Array, "token in"], weight: Float32[Array, "out in"], spans: Spans | None = None
) -> Float32[Array, "token out"]:
    """Return `x @ weight.T`; with spans, of the tokens inside them, and zeros for the others."""
    return _call(FLOAT32_TARGET, x, weight, *_given(spans))


def native_bfloat16(
    x: Float32[Array, "token in"], weight: BFloat16[Array, "out in"], spans: Spans | None = None
) -> Float32[Array, "token out"]:
    """Return `x @ weight.T`, the same as with the weight in float32; see `native_float32`."""
    return _call(BFLOAT16_TARGET, x, weight, *_given(spans))


def native_rounded(
    x: Float32[Array, "token in"], weight: BFloat16[Array, "out in"], spans: Spans | None = None
) -> Float32[Array, "token out"]:
    """Return the product of tokens rounded to bfloat16, summed in float32; see `native_float32`.

    Numbers smaller than the smallest normal float32 count as zero. Only for `NativeCode.rounds_tokens`.
    """
    return _call(ROUNDED_TARGET, x, weight, *_given(spans))


def native_int8(
    x: Float32[Array, "token in"],
    values: Int8[Array, "out in"],
    scale: Float32[Array, " out"],
    spans: Spans | None = None,
) -> Float32[Array, "token out"]:
    """Multiply tokens, quantized as by `quantize_tokens`, by a weight; see `native_float32`."""
    return _call(INT8_TARGET, x, values, scale, *_given(spans))


def native_int4(
    x: Float32[Array, "token in"],
    values: Int4[Array, "out in"],
    scale: Float[Array, "out group"],
    zero: Float[Array, "out group"] | None,
    spans: Spans | None = None,
    *,
    quantizes_tokens: bool = False,
) -> Float32[Array, "token out"]:
    """Multiply tokens by a weight in 4 bits, whose rows are interleaved; see `native_float32`.

    Only for weights that `serves_int4` accepts. Some rows at a time are widened to float32; or each 32 columns of a
    token are quantized to int8 with a scale, only for `NativeCode.quantizes_parts`.
    """
    zero = jnp.zeros((0, 0), scale.dtype) if zero is None else zero
    return _call(QUANTIZED_INT4_TARGET if quantizes_tokens else INT4_TARGET, x, values, scale, zero, *_given(spans))


def native_grouped(
    x: Float32[Array, "row in"],
    weight: Float32[Array, "group out in"] | BFloat16[Array, "group out in"],
    sizes: Int32[Array, " group"],
    *,
    rounds_tokens: bool = False,
) -> Float32[Array, "row out"]:
    """Multiply rows, sorted by group, each by the weight of its group; other groups' weights are not read.

    A row's product does not depend on the other rows. With a weight in bfloat16, rows may be rounded to it.
    """
    if weight.dtype != jnp.bfloat16:
        return _call(GROUPED_FLOAT32_TARGET, x, weight, sizes)
    return _call(GROUPED_ROUNDED_TARGET if rounds_tokens else GROUPED_BFLOAT16_TARGET, x, weight, sizes)


def native_grouped_int8(
    x: Float32[Array, "row in"],
    values: Int8[Array, "group out in"],
    sizes: Int32[Array, " group"],
    scale: Float32[Array, "group out"],
) -> Float32[Array, "row out"]:
    """Multiply rows, quantized as by `quantize_tokens`, in the same way."""
    return _call(GROUPED_INT8_TARGET, x, values, sizes, scale)


def native_adapters(
    out: Float32[Array, "token out"],
    x: Float32[Array, "token in"],
    adapters: tuple[Float32[Array, "slot part rank in"], Float32[Array, "slot rank out"]],
    slots: Int32[Array, " token"],
    ends: tuple[int, ...],
) -> Float32[Array, "token out"]:
    """Add to products of tokens those with their adapters; see `add_adapters`.

    Args:
        out: the products of the tokens with a weight; its memory becomes the result's.
        x: the tokens.
        adapters: A of every slot and of each tensor that the weight joins, and B of every slot.
        slots: of each token's adapter; below 0 for none.
        ends: those of the tensors among the rows of the weight, which repeat after the last.
    """
    register_native_calls()
    call = jax.ffi.ffi_call(ADAPTERS_TARGET, jax.ShapeDtypeStruct(out.shape, jnp.float32), input_output_aliases={0: 0})
    return call(out, x, *adapters, slots, jnp.array(ends, jnp.int32))


def most_native_tokens(native: NativeCode, weight_dtype: np.dtype, *, num_padded: int = 0) -> int:
    """Return up to how many tokens the C++ product is used instead of XLA's.

    Args:
        native: what the library offers.
        weight_dtype: in which a weight is stored; float32, bfloat16 and int8 are served.
        num_padded: what XLA would multiply, where only tokens inside spans count; 0 without spans.
    """
    if weight_dtype not in MAX_TOKENS or not native.has_products:
        return 0
    if num_padded and skips_padding(native, weight_dtype.name):
        return NO_LIMIT
    most = MAX_TOKENS[weight_dtype][native]
    speed = FLOAT32_SPEED.get(native, 0.0) if weight_dtype == np.float32 else 0.0
    return max(most, int(speed * num_padded))


def _given(spans: Spans | None) -> tuple[Spans, ...]:
    return () if spans is None else (spans,)


def _call(target: str, x: Array, weight: Array, *rest: Array) -> Array:
    register_native_calls()
    result = jax.ShapeDtypeStruct((x.shape[0], weight.shape[-2]), jnp.float32)
    return jax.ffi.ffi_call(target, result)(x, weight, *rest)
