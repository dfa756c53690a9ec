"""Packing of keys and values into 32-bit words: a word contains one dimension of two heads in 8 bits, or of one in 16.

    bits     0..7        8..15        16..23          24..31
    word w   key 2w      value 2w     key 2w + 1      value 2w + 1
    word w   key w                    value w

So a single load provides keys and values, the type is one that every TPU can copy and shift, and no array has type FP8,
for which v5e and v6e have no instructions.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float32, Int32, Num

WORD_BYTES = 4
# A float32 with the exponent field of an FP8 number is too small by this factor.
FP8_EXPONENT = 2.0**120
FP8_SUBNORMAL = 2.0**-9  # the smallest float8_e4m3fn


def heads_per_word(dtype: DTypeLike) -> int:
    """Return how many heads of a dtype are in a word."""
    return WORD_BYTES // (2 * jnp.dtype(dtype).itemsize)


def packed_words(
    keys: Num[Array, "*token kv_head dim"], values: Num[Array, "*token kv_head dim"]
) -> Int32[Array, "*token word dim"]:
    """Pack keys and values into words; the heads must fill them."""
    octets, count = keys.dtype.itemsize, heads_per_word(keys.dtype)
    bits = (jax.lax.bitcast_convert_type(part, f"uint{8 * octets}").astype(jnp.uint32) for part in (keys, values))
    pairs = functools.reduce(jnp.bitwise_or, (part << (8 * octets * place) for place, part in enumerate(bits)))
    words = (pairs[..., place::count, :] << (16 * octets * place) for place in range(count))
    return jax.lax.bitcast_convert_type(functools.reduce(jnp.bitwise_or, words), jnp.int32)


def unpacked(words: Int32[Array, "..."], place: int, dtype: DTypeLike) -> Float32[Array, "..."]:
    """Return the numbers at a place of each word exactly; an FP8 NaN becomes a number, since its scale is NaN.

    Source: Micikevicius et al. 2022, arXiv:2209.05433, section 3 (E4M3)
    """
    if jnp.dtype(dtype) == jnp.bfloat16:  # the upper half of a float32
        return jax.lax.bitcast_convert_type(words << 16 if place == 0 else words & -(2**16), jnp.float32)
    signed = (words << (24 - 8 * place)) >> 24
    if jnp.dtype(dtype) == jnp.int8:
        return signed.astype(jnp.float32)
    size = signed & 0x7F
    subnormal = size.astype(jnp.float32) * FP8_SUBNORMAL  # a TPU flushes subnormal float32 to 0
    normal = jax.lax.bitcast_convert_type(size << 20, jnp.float32) * FP8_EXPONENT
    wide = jnp.where(size < 8, subnormal, normal)
    return jnp.where(signed < 0, -wide, wide)
