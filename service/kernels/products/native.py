"""Products of a few tokens on a CPU in C++; see `service/device/native`.

XLA quantizes tokens, multiplies and scales in separate loops, and has no fast int8 product of a single token. The C++
products read a weight once, at about memory bandwidth.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int8

from service.device.native.library import FLOAT32_TARGET, INT8_TARGET, NativeProducts

# With more tokens, XLA's products, which pack weights, are at least as fast.
MAX_FLOAT32_TOKENS = 8
MAX_INT8_TOKENS = {NativeProducts.NONE: 0, NativeProducts.AVX2: 8, NativeProducts.AVX512: 256}
MAX_FLOAT32_ROW = 1536  # values per token such that eight tokens stay in the L1 cache


def native_float32(x: Float32[Array, "token in"], weight: Float32[Array, "out in"]) -> Float32[Array, "token out"]:
    """Return `x @ weight.T`."""
    return _call(FLOAT32_TARGET, x, weight)


def native_int8(
    x: Float32[Array, "token in"], values: Int8[Array, "out in"], scale: Float32[Array, " out"]
) -> Float32[Array, "token out"]:
    """Multiply tokens, quantized as by `quantize_tokens`, by a weight."""
    return _call(INT8_TARGET, x, values, scale)


def serves_float32(native: NativeProducts, num_tokens: int, num_in: int) -> bool:
    """Return whether the C++ product is used for float32 instead of XLA."""
    return native is not NativeProducts.NONE and num_tokens <= MAX_FLOAT32_TOKENS and num_in <= MAX_FLOAT32_ROW


def serves_int8(native: NativeProducts, num_tokens: int) -> bool:
    """Return whether the C++ product is used for int8 instead of XLA."""
    return num_tokens <= MAX_INT8_TOKENS[native]


def _call(target: str, x: Array, weight: Array, *rest: Array) -> Array:
    result = jax.ShapeDtypeStruct((x.shape[0], weight.shape[0]), jnp.float32)
    return jax.ffi.ffi_call(target, result)(x, weight, *rest)
