"""Changes to the results of attention before the output projection: exclusive attention, gates of heads."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

type Attended = Float[Array, "token kv_head group head_dim"]

EXCLUSIVE_EPS = 1e-6


def without_own_value(attended: Attended, values: Float[Array, "token kv_head head_dim"]) -> Attended:
    """Subtract from each result its component along its token's own value.

    Source: Levanter `models/snowball.py` (exclusive self-attention).
    """
    wide, own = attended.astype(jnp.float32), values[:, :, None, :].astype(jnp.float32)
    product, square = (jnp.sum(part * own, axis=-1, keepdims=True) for part in (wide, own))
    return (wide - product / (square + EXCLUSIVE_EPS) * own).astype(attended.dtype)


def gated_heads(
    attended: Attended, x: Float[Array, "token embed"], gates: Float[Array, "kv_head group embed"], most: float
) -> Attended:
    """Multiply the result of each query head by a number between 0 and `most`, which depends on the layer's input."""
    of_head = jnp.einsum("te,kge->tkg", x, gates, preferred_element_type=jnp.float32)
    return (attended.astype(jnp.float32) * (most * jax.nn.sigmoid(of_head))[..., None]).astype(attended.dtype)
