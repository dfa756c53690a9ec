"""Products with weights, which are stored [out, in] as in a checkpoint, in the form that a device is fastest at.

XLA hands float32 products on a processor to YNNPACK. Asked for `x @ weight.T` that first packs the weights, which takes
as long as reading them twice. Asked for a batch of `part @ x.T`, it reads the parts of the weights where they lie.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from service.device.mesh import DeviceMesh

type Parts = tuple[tuple[int, int], ...]
"""In how many parts a weight is read, by the largest number of tokens; above the last of them it is read whole."""

WHOLE: Parts = ()
# All layers of 135M parameters take 6 instead of 9 ms for one token, 38 instead of 41 for 64; of 1B parameters (four
# layers) 14 instead of 20, and 74 instead of 92. For many tokens packing costs nothing that shows.
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
