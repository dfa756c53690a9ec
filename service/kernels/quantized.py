"""Activations in 8 bits, made in the step, for products with weights in 8 bits.

Source: Dettmers et al. 2022, arXiv:2208.07339, section 2.1 (absmax quantization, by token).
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int8

from service.kernels.limits import INT8_MAX


def quantize_tokens(
    x: Float[Array, "*token_in"], num_in_axes: int
) -> tuple[Int8[Array, "*token_in"], Float32[Array, "*token"]]:
    """Return values in [-127, 127], and for each token the scale by which they are multiplied.

    A token with a NaN or an infinity has that as its scale, so that every product with it is one too.
    """
    axes = tuple(range(-num_in_axes, 0))
    wide = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(wide), axes, keepdims=True)
    scale = jnp.where(largest == 0, 1, largest / INT8_MAX)
    return jnp.round(wide / scale).astype(jnp.int8), jnp.squeeze(scale, axes)
