"""Non-linearities, as torch defines them."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from service.models.description import Activation

XIELU_BETA, XIELU_EPS = 0.5, -1e-6
SWIGLU_LIMIT, SWIGLU_SLOPE = 7.0, 1.702


def activate(x: Float[Array, "*axes"], activation: Activation) -> Float[Array, "*axes"]:
    """Apply a non-linearity to each element."""
    return _FUNCTIONS[activation](x)


def gated(gate: Float[Array, "*axes"], up: Float[Array, "*axes"], activation: Activation) -> Float[Array, "*axes"]:
    """Multiply a projection by the non-linearity of another.

    Source: the clamped one: OpenAI 2025, arXiv:2508.10925, section 2.3; transformers
    `models/gpt_oss/modeling_gpt_oss.py` (GptOssExperts).
    """
    if activation is not Activation.CLAMPED_SWIGLU:
        return activate(gate, activation) * up
    gate, up = jnp.minimum(gate, SWIGLU_LIMIT), jnp.clip(up, -SWIGLU_LIMIT, SWIGLU_LIMIT)
    return gate * jax.lax.logistic(gate * SWIGLU_SLOPE) * (up + 1)


def xielu(x: Float[Array, "*axes"], alpha_p: Float[Array, "1"], alpha_n: Float[Array, "1"]) -> Float[Array, "*axes"]:
    """Apply xIELU with its parameters, before their softplus, to each element, in float32.

    Source: Huang & Schlag 2024, arXiv:2411.13010; transformers `activations.py` (XIELUActivation).
    """
    wide = x.astype(jnp.float32)
    above, below = jax.nn.softplus(alpha_p[0]), XIELU_BETA + jax.nn.softplus(alpha_n[0])
    curve = jnp.where(wide > 0, above * wide * wide, (jnp.expm1(jnp.minimum(wide, XIELU_EPS)) - wide) * below)
    return (curve + XIELU_BETA * wide).astype(x.dtype)


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
    Activation.RELU_SQUARED: lambda x: jnp.square(jnp.maximum(x, 0)),
    Activation.SIGMOID: jax.lax.logistic,
    Activation.TANH: jnp.tanh,
    Activation.NONE: lambda x: x,
}
