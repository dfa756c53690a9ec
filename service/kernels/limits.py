"""Hardware limits of the attention kernels: plain numbers, shared by the choice of a kernel and the kernels."""

import numpy as np

TPU_LANES = 128  # width of a vector register; ragged paged attention takes heads of exactly this many dimensions
TPU_SUBLANE_COUNTS = (1, 2, 4)  # parts of a tile of 8 sublanes that ragged paged attention takes
# Page tables lie in the scalar memory, 1 MiB up to v6e, of which the kernel and its other arguments take a part.
# Source: https://github.com/vllm-project/tpu-inference (half of it for page tables)
TPU_TABLE_BYTES = 512 * 1024
TPU_OCTET_PAGE_SIZES = (128, 256)  # positions: whole registers of the scales of a page
GPU_LARGEST_HEAD_DIM = 256  # dimensions; what fits the tiles
ADA = (8, 9)  # the first whose tensor cores multiply FP8
AMPERE = (8, 0)  # the first CUDA compute capability whose tensor cores support bfloat16

# The largest value that quantization gives an int8; -128 is left out, so that a number and its negative round alike.
INT8_MAX = 127
FP8_MAX = 448.0  # the largest float8_e4m3fn
# By dtype of cached keys and values that have scales, the largest number that an element becomes.
LARGEST_CACHED = {"int8": float(INT8_MAX), "float8_e4m3fn": FP8_MAX}
SCALE_BYTES = 4  # of a cached key's or value's scale, a float32


def vector_bytes(cached_head_dim: int, dtype: np.dtype) -> int:
    """Return the bytes of one cached key or value, its scale included."""
    return cached_head_dim * dtype.itemsize + (SCALE_BYTES if dtype.name in LARGEST_CACHED else 0)


def tpu_cached_heads(num_kv_heads: int, dtype: np.dtype) -> int:
    """Return how many key-value heads a TPU caches: as many, or the next more that ragged paged attention takes."""
    # Keys and values of all heads are neighbours; a sublane holds one or two of them, depending on the dtype's size.
    sublanes = -(-2 * num_kv_heads * dtype.itemsize // 4)
    taken = next((count for count in TPU_SUBLANE_COUNTS if count >= sublanes), -(-sublanes // 8) * 8)
    return taken * 4 // (2 * dtype.itemsize)
