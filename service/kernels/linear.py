"""Products with weights, which are stored [out, in] as in a checkpoint, in the form that a device is fastest at.

XLA hands float32 products on a processor to YNNPACK. Asked for `x @ weight.T` of a few tokens that first packs the
weights, which takes about as long again. Asked for a batch of `part @ x.T`, it reads the parts where they lie.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from service.device.mesh import DeviceMesh

type Parts = tuple[tuple[int, int], ...]
"""In how many parts a weight is read, by the largest number of tokens; above the last of them it is read whole."""

WHOLE: Parts = ()
# All layers' products of 135M parameters take 6.1 ms in parts and 6.7 whole for one token, 13 and 21 for 8, 38 and 41
# for 64; those of four much wider layers 14 and 19, 21 and 45, 74 and 97. For more tokens packing does not show.
CPU_PARTS: Parts = ((8, 8), (64, 2))


def product_parts(mesh: DeviceMesh, dtype: np.dtype) -> Parts:
    """Return in how many parts weights of a dtype are read; those that are split over devices are in parts already."""
    return CPU_PARTS if mesh.is_host and dtype == np.float32 else WHOLE


def product(x: Float[Array, "token in"], weight: Float[Array, "out in"], parts: Parts) -> Float[Array, "token out"]:
    """Return `x @ weight.T`."""
    num_tokens, num_in = x.shape
    num_out = weight.shape[0]
    wanted = next((num_parts for most_tokens, num_parts in parts if num_tokens <= most_tokens), 1)
    num_parts = math.gcd(wanted, num_out)
    if num_parts == 1:
        return jnp.einsum("ti,oi->to", x, weight)
    split = weight.reshape(num_parts, num_out // num_parts, num_in)
    columns = jnp.broadcast_to(x.T, (num_parts, num_in, num_tokens))
    return jnp.einsum("poi,pit->pot", split, columns).reshape(num_out, num_tokens).T
