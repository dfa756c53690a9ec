"""Products with weights, which are stored [out, in] as in a checkpoint, in the form that is fastest on a device.

XLA passes float32 products on a CPU to YNNPACK. For `x @ weight.T` of a few tokens YNNPACK first packs the weights,
which takes about as long again. For a batch of `part @ x.T` it reads the parts of the weight in place.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Float32, Int8, Num

from service.device.mesh import DeviceMesh
from service.kernels.quantized import quantize_tokens

type NumSplits = tuple[tuple[int, int], ...]
"""The number of parts of a weight, as pairs (largest number of tokens, parts); not split above the last."""

UNSPLIT: NumSplits = ()
# All layers' products of 135M parameters take 6.1 ms split and 6.7 unsplit for one token, 13 and 21 for 8, 38 and 41
# for 64; those of four much wider layers 14 and 19, 21 and 45, 74 and 97. With more tokens packing is negligible.
CPU_NUM_SPLITS: NumSplits = ((8, 8), (64, 2))
# The gate-up weights of 33 layers of 135M parameters take 5.2 ms split and 5.7 unsplit for one token, 5.9 and 6.6 for
# 8, 8.6 and 9.2 for 32 (float32: 13, 20, 42); those of four layers of 8,192 x 2,048 5.6 and 11, 6.3 and 11, 12 and 15.
CPU_QUANTIZED_NUM_SPLITS: NumSplits = ((16, 4),)


class QuantizedWeight(NamedTuple):
    """A weight in 8 bits, and the scale of each of its rows."""

    values: Int8[Array, "*out_in"]
    scale: Float32[Array, "*out"]


def choose_num_splits(mesh: DeviceMesh, dtype: np.dtype) -> NumSplits:
    """Return how weights of a dtype are split for their products; several devices have a part each already."""
    return CPU_NUM_SPLITS if mesh.is_host and dtype == np.float32 else UNSPLIT


def linear(
    x: Float[Array, "*token_in"],
    weight: Float[Array, "*out_in"] | QuantizedWeight,
    num_splits: NumSplits,
    *,
    num_in_axes: int = 1,
    dtype: DTypeLike | None = None,
) -> Float[Array, "*token_out"]:
    """Return `x @ weight.T`, summed over the last `num_in_axes` axes of both.

    Args:
        x: tokens, in a number of axes of their own.
        weight: wide; or quantized, and then each token is quantized for the product too.
        num_splits: the parts that a wide weight is split into.
        num_in_axes: the axes to sum over.
        dtype: of the result; None for that of `x`.
    """
    if not isinstance(weight, QuantizedWeight):
        return _product(x, weight, num_splits, num_in_axes, dtype)
    splits = CPU_QUANTIZED_NUM_SPLITS if num_splits != UNSPLIT else UNSPLIT
    values, scale = quantize_tokens(x, num_in_axes)
    token_axes = x.ndim - num_in_axes
    if is_one := math.prod(x.shape[:token_axes]) == 1:
        # XLA:CPU has no fast path for one row: it takes ten times as long as two.
        values = jnp.concatenate([values, jnp.zeros_like(values)], token_axes - 1)
    sums = _product(values, weight.values, splits, num_in_axes, jnp.int32)
    if is_one:
        sums = jax.lax.slice_in_dim(sums, 0, 1, axis=token_axes - 1)
    token_scale = jax.lax.expand_dims(scale, range(token_axes, sums.ndim))
    row_scale = jax.lax.expand_dims(weight.scale, range(token_axes))
    return (sums.astype(jnp.float32) * (token_scale * row_scale)).astype(dtype or x.dtype)


def _product(
    x: Num[Array, "*token_in"],
    weight: Num[Array, "*out_in"],
    num_splits: NumSplits,
    num_in_axes: int,
    dtype: DTypeLike | None,
) -> Num[Array, "*token_out"]:
    token_shape, out_shape = x.shape[:-num_in_axes], weight.shape[:-num_in_axes]
    num_tokens, num_out = math.prod(token_shape), math.prod(out_shape)
    wanted = next((parts for most_tokens, parts in num_splits if num_tokens <= most_tokens), 1)
    num_parts = math.gcd(wanted, num_out)
    if num_parts == 1:
        axes = tuple(range(-num_in_axes, 0))
        return jnp.tensordot(x, weight, (axes, axes), preferred_element_type=dtype)
    split = weight.reshape(num_parts, num_out // num_parts, -1)
    columns = jnp.broadcast_to(x.reshape(num_tokens, -1).T[None], (num_parts, split.shape[2], num_tokens))
    sums = jnp.einsum("poi,pit->pot", split, columns, preferred_element_type=dtype)
    return sums.reshape(num_out, num_tokens).T.reshape(*token_shape, *out_shape)
