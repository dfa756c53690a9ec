"""Packing of 8-bit keys and values into 32-bit words: a word contains one dimension of two heads.

    bits     0..7        8..15        16..23          24..31
    word w   key 2w      value 2w     key 2w + 1      value 2w + 1

So a single load provides two heads, the type is one that every TPU can copy and shift, and no array has type FP8, for
which v5e and v6e have no instructions.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32, Num

HEADS_PER_WORD = 2
# A float32 with the exponent field of an FP8 number is too small by this factor.
FP8_EXPONENT = 2.0**120
FP8_SUBNORMAL = 2.0**-9  # the smallest float8_e4m3fn


def packed_words(
    keys: Num[Array, "*token kv_head dim"], values: Num[Array, "*token kv_head dim"]
) -> Int32[Array, "*token word dim"]:
    """Pack 8-bit keys and values into words; the number of heads must be even."""
    values = jax.lax.bitcast_convert_type(jnp.stack([keys, values], axis=-2), jnp.uint8)
    *token, num_heads, _, dim = values.shape
    pairs = values.reshape(*token, num_heads // HEADS_PER_WORD, 2 * HEADS_PER_WORD, dim).astype(jnp.uint32)
    words = pairs[..., 0, :]
    for place in range(1, 2 * HEADS_PER_WORD):
        words |= pairs[..., place, :] << (8 * place)
    return jax.lax.bitcast_convert_type(words, jnp.int32)


def unpacked(words: Int32[Array, "..."], place: int, *, is_fp8: bool) -> Float32[Array, "..."]:
    """Return the numbers at a byte of each word exactly; an FP8 NaN becomes a number, since its scale is NaN.

    Source: Micikevicius et al. 2022, arXiv:2209.05433, section 3 (E4M3)
    """
    signed = (words << (24 - 8 * place)) >> 24
    if not is_fp8:
        return signed.astype(jnp.float32)
    size = signed & 0x7F
    subnormal = size.astype(jnp.float32) * FP8_SUBNORMAL  # a TPU flushes subnormal float32 to 0
    normal = jax.lax.bitcast_convert_type(size << 20, jnp.float32) * FP8_EXPONENT
    wide = jnp.where(size < 8, subnormal, normal)
    return jnp.where(signed < 0, -wide, wide)
