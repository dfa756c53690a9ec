"""Products of a few tokens on a CPU, in C++: see `service/device/native`.

XLA quantizes tokens, multiplies and scales in a loop each, and has no fast product of one token in int8. These read a
weight once.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int8

from service.device.native.library import FLOAT32_TARGET, INT8_TARGET, NativeCode

# With more tokens XLA's products, which pack weights, are as fast or faster.
MAX_FLOAT32_TOKENS = 8
MAX_INT8_TOKENS = {NativeCode.AVX2: 8, NativeCode.AVX512: 256}
MAX_FLOAT32_ROW = 1536  # so many values of eight tokens remain in a processor's first cache


def native_float32(x: Float32[Array, "token in"], weight: Float32[Array, "out in"]) -> Float32[Array, "token out"]:
    """Return `x @ weight.T`."""
    return _call(FLOAT32_TARGET, x, weight)


def native_int8(
    x: Float32[Array, "token in"], values: Int8[Array, "out in"], scale: Float32[Array, " out"]
) -> Float32[Array, "token out"]:
    """Return the product of tokens, quantized as `quantize_tokens` does, with a weight."""
    return _call(INT8_TARGET, x, values, scale)


def serves_float32(native: NativeCode, num_tokens: int, num_in: int) -> bool:
    """Return whether a product in float32 is computed here rather than by XLA."""
    return native.has_products and num_tokens <= MAX_FLOAT32_TOKENS and num_in <= MAX_FLOAT32_ROW


def serves_int8(native: NativeCode, num_tokens: int) -> bool:
    """Return whether a product in int8 is computed here rather than by XLA."""
    return native.has_products and num_tokens <= MAX_INT8_TOKENS[native]


def _call(target: str, x: Array, weight: Array, *rest: Array) -> Array:
    result = jax.ShapeDtypeStruct((x.shape[0], weight.shape[0]), jnp.float32)
    return jax.ffi.ffi_call(target, result)(x, weight, *rest)
