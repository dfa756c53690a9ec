"""The non-linearities of encoders, as torch defines them."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from service.models.encoders.config import Activation


def activate(x: Float[Array, "*axes"], activation: Activation) -> Float[Array, "*axes"]:
    """Apply a non-linearity to each element."""
    return _FUNCTIONS[activation](x)


def _gelu(x: jax.Array) -> jax.Array:
    """Source: Hendrycks & Gimpel 2016, arXiv:1606.08415."""
    return x * (jax.lax.erf(x * math.sqrt(0.5)) + 1) * 0.5


def _gelu_tanh(x: jax.Array) -> jax.Array:
    """Source: the same, section 2, the approximation."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return x * (jnp.tanh(inner) + 1) * 0.5


_FUNCTIONS: dict[Activation, Callable[[jax.Array], jax.Array]] = {
    Activation.GELU: _gelu,
    Activation.GELU_TANH: _gelu_tanh,
    Activation.RELU: lambda x: jnp.maximum(x, 0),
    Activation.SILU: lambda x: x * jax.lax.logistic(x),
    Activation.SIGMOID: jax.lax.logistic,
    Activation.TANH: jnp.tanh,
    Activation.NONE: lambda x: x,
}
