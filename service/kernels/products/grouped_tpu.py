"""Grouped products on a TPU, by the kernel that JAX ships."""

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas.ops.tpu.megablox import gmm
from jaxtyping import Array, Float, Float32, Int32

# Such that two stages of all tiles fit into a v5e's vector memory; not tuned.
MOST_ROWS, MOST_IN, MOST_OUT = 128, 512, 512
ROW_MULTIPLE = 16  # of a tile in bfloat16
SUPPORTED = {jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)}


def grouped_on_tpu(
    x: Float[Array, "row in"],
    weight: Float[Array, "group out in"],
    sizes: Int32[Array, " group"],
    *,
    interpret: bool = False,
) -> Float32[Array, "row out"]:
    """Return the products of rows, sorted by group, with the weight of their group; in bfloat16 or float32.

    Source: Gale et al. 2022, arXiv:2211.15841 (MegaBlocks).
    """
    (num_rows, num_in), num_out = x.shape, weight.shape[1]
    tile_rows = min(MOST_ROWS, pl.cdiv(num_rows, ROW_MULTIPLE) * ROW_MULTIPLE)
    padded = jnp.pad(x, ((0, -num_rows % tile_rows), (0, 0)))
    tiling = (tile_rows, min(num_in, MOST_IN), min(num_out, MOST_OUT))
    # The rows of padding belong to no group, so they are not computed.
    return gmm(padded, weight, sizes, jnp.float32, tiling, transpose_rhs=True, interpret=interpret)[:num_rows]
