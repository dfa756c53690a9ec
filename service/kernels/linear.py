"""Products with weights, which are stored [out, in] as in a checkpoint, in the form that is fastest on a device.

XLA passes float32 products on a CPU to YNNPACK. For `x @ weight.T` of a few tokens YNNPACK first packs the weights,
which takes about as long again. For a batch of `part @ x.T` it reads the parts of the weight in place.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from service.device.mesh import DeviceMesh

type NumSplits = tuple[tuple[int, int], ...]
"""How many parts a weight is split into, as pairs (largest number of tokens, parts); above the last it is not split."""

UNSPLIT: NumSplits = ()
# All layers' products of 135M parameters take 6.1 ms split and 6.7 unsplit for one token, 13 and 21 for 8, 38 and 41
# for 64; those of four much wider layers 14 and 19, 21 and 45, 74 and 97. With more tokens packing is negligible.
CPU_NUM_SPLITS: NumSplits = ((8, 8), (64, 2))


def choose_num_splits(mesh: DeviceMesh, dtype: np.dtype) -> NumSplits:
    """Return how weights of a dtype are split for their products; several devices have a part each already."""
    return CPU_NUM_SPLITS if mesh.is_host and dtype == np.float32 else UNSPLIT


def linear(
    x: Float[Array, "token in"], weight: Float[Array, "out in"], num_splits: NumSplits
) -> Float[Array, "token out"]:
    """Return `x @ weight.T`."""
    num_tokens, num_in = x.shape
    num_out = weight.shape[0]
    wanted = next((parts for most_tokens, parts in num_splits if num_tokens <= most_tokens), 1)
    num_parts = math.gcd(wanted, num_out)
    if num_parts == 1:
        return jnp.einsum("ti,oi->to", x, weight)
    split = weight.reshape(num_parts, num_out // num_parts, num_in)
    columns = jnp.broadcast_to(x.T[None], (num_parts, num_in, num_tokens))
    return jnp.einsum("poi,pit->pot", split, columns).reshape(num_out, num_tokens).T
