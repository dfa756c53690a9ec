"""Hardware limits of the attention kernels in plain numbers, for the kernels and their selection."""

import math
from collections.abc import Sequence

import numpy as np

from service.device.native.library import NativeCode

TPU_LANES = 128  # width of a vector register, of which a cached head fills one or more
TPU_LARGEST_HEAD_DIM = 512  # the largest that is compiled and tested
TPU_SUBLANE_COUNTS = (1, 2, 4)  # fractions of a tile of 8 sublanes that ragged paged attention supports
# Page tables are in scalar memory (SMEM), 1 MiB up to v6e, which they share with the kernel's other arguments.
# Source: https://github.com/vllm-project/tpu-inference (half of it for page tables)
TPU_TABLE_BYTES = 512 * 1024
TPU_KV8_PAGE_SIZES = (128, 256)  # positions, so that a page's scales fill whole registers
GPU_LARGEST_HEAD_DIM = 512  # limited by the tiles, which have 16 positions at least
# Offsets of elements are signed and have 32 bits in arrays of up to 4 GiB, so elements of one byte must be fewer.
# Source: https://github.com/jax-ml/jax/blob/main/jax/_src/pallas/triton/lowering.py, `_compute_offsets_from_indices`
GPU_OFFSETS = 2**31
ADA = (8, 9)  # the first CUDA compute capability whose tensor cores multiply FP8
AMPERE = (8, 0)  # the first CUDA compute capability whose tensor cores support bfloat16

# The largest magnitude of quantized int8; -128 is not used, so that rounding is symmetric.
INT8_MAX = 127
FP8_MAX = 448.0  # the largest float8_e4m3fn
# The largest element of a quantized cache, by dtype.
LARGEST_CACHED = {"int8": float(INT8_MAX), "float8_e4m3fn": FP8_MAX}
NATIVE_CACHED_DTYPES = ("float32", "bfloat16", "int8", "float8_e4m3fn")
NATIVE_LARGEST_HEAD_DIM = 1024
# Of a weight in 4 bits: `kPanelRows` and `kWidened` of device/native/product.h.
PANEL_ROWS, PART_COLUMNS = 16, 32
SCALE_BYTES = 4  # of a cached key's or value's scale, a float32


def serves_attention(native: NativeCode, cached_dtype: np.dtype, head_dim: int) -> bool:
    """Return whether there is attention in C++ over keys and values of a dtype."""
    return native.has_products and cached_dtype.name in NATIVE_CACHED_DTYPES and head_dim <= NATIVE_LARGEST_HEAD_DIM


def skips_padding(native: NativeCode, weight_dtype: str) -> bool:
    """Return whether products with spans are computed in C++ for any number of tokens, so that padding costs little."""
    if weight_dtype == "int8":  # XLA's matrix units are faster for many tokens
        return native in (NativeCode.AVX512, NativeCode.AVX512_BF16)
    is_wide = weight_dtype in ("float32", "bfloat16", "int4")  # which is multiplied in a wide type
    return is_wide and native in (NativeCode.AVX512, NativeCode.AVX512_BF16, NativeCode.AMX)


def serves_int4(
    native: NativeCode, scale_dtype: np.dtype, shape: Sequence[int], *, num_groups: int, stack_axes: int = 0
) -> bool:
    """Return whether there are C++ products with a weight in 4 bits: of whole panels of rows, and whole vectors.

    Args:
        native: what the library offers.
        scale_dtype: that of the scales of its groups.
        shape: [*stack, *out, in], of several weights one after the other if there are axes of a stack.
        num_groups: of the columns of a row.
        stack_axes: the number of those axes.
    """
    is_read = scale_dtype.name in ("float32", "bfloat16")
    num_rows, num_in = math.prod(shape[stack_axes:-1]), shape[-1]
    is_whole = num_rows % PANEL_ROWS == 0 and num_in % (PART_COLUMNS * num_groups) == 0
    return native.has_products and is_read and is_whole


def vector_bytes(cached_head_dim: int, dtype: np.dtype) -> int:
    """Return the bytes of one cached key or value, including its scale."""
    return cached_head_dim * dtype.itemsize + (SCALE_BYTES if dtype.name in LARGEST_CACHED else 0)


def tpu_heads_per_register(head_dim: int) -> int:
    """Return how many heads are joined in a register; 1 for heads that fill one or more, with padding or without."""
    return TPU_LANES // head_dim if TPU_LANES % head_dim == 0 else 1


def tpu_cached_dim(head_dim: int) -> int:
    """Return the dimensions of a cached head: unpadded if heads share a register, else rounded up to whole ones."""
    return head_dim if tpu_heads_per_register(head_dim) > 1 else -(-head_dim // TPU_LANES) * TPU_LANES


def tpu_cached_heads(num_kv_heads: int, head_dim: int, dtype: np.dtype) -> int:
    """Round the number of key-value heads up to one that fills registers and that ragged paged attention supports."""
    per_register = tpu_heads_per_register(head_dim)
    num_joined = -(-num_kv_heads // per_register)
    # Keys and values of all heads are interleaved; a sublane contains one or more of them, depending on the dtype.
    sublanes = -(-2 * num_joined * dtype.itemsize // 4)
    supported = next((count for count in TPU_SUBLANE_COUNTS if count >= sublanes), -(-sublanes // 8) * 8)
    return per_register * supported * 4 // (2 * dtype.itemsize)
