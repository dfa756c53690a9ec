"""The feed-forward of a layer, over named arrays."""

import haliax as hax
import jax
import jax.numpy as jnp
from haliax import NamedArray

from service.models.activations import activate, gated, xielu
from service.models.description import Activation, Experts, ExpertsBeside, FeedForward, PerLayerInput
from service.models.experts import mixture
from service.models.multiply import Multiply, NamedWeights, scaled
from service.models.norm import normalized


def feed_forward(
    x: NamedArray, description: FeedForward | Experts, weights: NamedWeights, multiply: Multiply
) -> NamedArray:
    """Project up, activate, project down; with a gate, multiply by a second projection up in between.

    A mixture of experts does so for the experts of each token, and for one that all tokens share.
    Source: Shazeer 2020, arXiv:2002.05202 (SwiGLU).
    """
    if isinstance(description, Experts):
        mixed, shared = _mixed(x, description, weights, multiply), description.shared
        if shared is None:
            return mixed
        own = feed_forward(x, shared, weights, multiply)
        return mixed + (own * _shared_gate(x, weights) if description.has_shared_gate else own)
    up_name = "gate_up" if description.is_gated else "up"
    with jax.named_scope("mlp"):
        up = multiply(x, weights, up_name, ("embed",))
        if description.has_bias:
            up = up + weights[f"{up_name}_bias"]
        if description.is_gated:
            gate, plain = scaled(up["gate_up", 0], description.gate_multiplier), up["gate_up", 1]
            active = hax.named(gated(gate.array, plain.array, description.activation), gate.axes)
        else:
            active = _activated(up, description.activation, weights)
        down = multiply.constrained(multiply(active, weights, "down", ("mlp",)))
    return down + weights["down_bias"] if description.has_bias else down


def _mixed(x: NamedArray, description: Experts, weights: NamedWeights, multiply: Multiply) -> NamedArray:
    """Return the weighted sum of the results of experts, which may read another width than the router."""
    latent = description.latent
    if latent is None:
        return mixture(x, description, weights, multiply)
    with jax.named_scope("latent_in"):
        inner = multiply(x, weights, "latent_in", ("embed",))
        inner = inner + weights["latent_in_bias"] if latent.has_bias else inner
        inner = normalized(inner.rename({"latent": "embed"}), latent.norm, weights, "latent_norm")
    mixed = mixture(inner, description, weights, multiply, x)
    with jax.named_scope("latent_out"):
        out = multiply(mixed.rename({"embed": "latent"}), weights, "latent_out", ("latent",))
    return out + weights["latent_out_bias"] if latent.has_bias else out


def with_experts_beside(
    made: NamedArray, stream: NamedArray, description: ExpertsBeside, weights: NamedWeights, multiply: Multiply
) -> NamedArray:
    """Return the result of a layer's feed-forward and, added to it, that of the experts beside it.

    Args:
        made: what the feed-forward gives.
        stream: the residual stream before the feed-forward.
        description: the experts.
        weights: those of the layer.
        multiply: multiplies by a weight.

    Source: transformers `models/gemma4/modeling_gemma4.py` (Gemma4TextDecoderLayer, Gemma4TextRouter)
    """
    experts, width = description.experts, stream.resolve_axis("embed").size
    routed = normalized(stream, experts.router_norm, weights, "router_norm") * width**-0.5
    x = normalized(stream, description.norm, weights, "beside_norm")
    mixed = mixture(x, experts, weights, multiply, routed)
    own = normalized(made, description.feed_forward_post_norm, weights, "feed_forward_post_norm")
    return own + normalized(mixed, description.post_norm, weights, "beside_post_norm")


def of_layer_input(
    hidden: NamedArray,
    layer_input: NamedArray,
    description: PerLayerInput,
    weights: NamedWeights,
    multiply: Multiply,
) -> NamedArray:
    """Return what a layer's own input adds to the residual stream at its end.

    Source: transformers `models/gemma4/modeling_gemma4.py` (Gemma4TextDecoderLayer)
    """
    with jax.named_scope("per_layer_input"):
        gate = multiply(hidden, weights, "per_layer_gate", ("embed",))
        active = hax.named(activate(gate.array, description.activation), gate.axes) * layer_input
        up = multiply.constrained(multiply(active, weights, "per_layer_projection", ("size",)))
        return normalized(up, description.post_norm, weights, "per_layer_post_norm")


def _shared_gate(x: NamedArray, weights: NamedWeights) -> NamedArray:
    """Return a number between 0 and 1 of each token."""
    logits = hax.dot(x.astype(jnp.float32), weights["shared_gate"].astype(jnp.float32)["one", 0], axis="embed")
    return hax.named(jax.nn.sigmoid(logits.array), logits.axes).astype(x.dtype)


def _activated(x: NamedArray, activation: Activation, weights: NamedWeights) -> NamedArray:
    if activation is Activation.XIELU:
        alpha_p, alpha_n = (weights[name].array.astype(jnp.float32) for name in ("alpha_p", "alpha_n"))
        return hax.named(xielu(x.array, alpha_p, alpha_n), x.axes)
    return hax.named(activate(x.array, activation), x.axes)
