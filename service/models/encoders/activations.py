"""The non-linearities of encoders, as torch defines them."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from service.models.encoders.config import Activation


def activate(x: Float[Array, "*axes"], activation: Activation) -> Float[Array, "*axes"]:
    """Apply a non-linearity to each element. Source: Hendrycks & Gimpel 2016, arXiv:1606.08415 (GELU)."""
    match activation:
        case Activation.GELU:
            return x * (jax.lax.erf(x * math.sqrt(0.5)) + 1) * 0.5
        case Activation.GELU_TANH:
            inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
            return x * (jnp.tanh(inner) + 1) * 0.5
        case Activation.RELU:
            return jnp.maximum(x, 0)
        case Activation.SILU:
            return x * jax.lax.logistic(x)
        case Activation.TANH:
            return jnp.tanh(x)
        case Activation.NONE:
            return x
