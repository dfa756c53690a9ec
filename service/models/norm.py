"""Normalization of named arrays."""

import haliax as hax
import jax
import jax.numpy as jnp
from haliax import NamedArray

from service.models.activations import activate
from service.models.description import Activation, Norm, NormKind
from service.models.multiply import NamedWeights


def normalized(
    x: NamedArray, norm: Norm | None, weights: NamedWeights, name: str, axes: str | tuple[str, ...] = "embed"
) -> NamedArray:
    """Normalize over some axes; where there is no norm, return the argument.

    Source: Zhang & Sennrich 2019, arXiv:1910.07467 (RMS); Ba et al. 2016, arXiv:1607.06450 (mean and variance).
    """
    if norm is None:
        return x
    wide = x.astype(jnp.float32)
    if norm.kind is NormKind.LAYER:
        wide = wide - hax.mean(wide, axes)
    normal = wide * hax.rsqrt(hax.mean(hax.square(wide), axes) + norm.eps)
    if not norm.is_scaled_wide:
        normal = normal.astype(x.dtype)
    if norm.has_weight:
        scale = weights[name].astype(normal.dtype)
        normal = normal * (scale + 1 if norm.is_plus_one else scale)
    if norm.has_bias:
        normal = normal + weights[f"{name}_bias"].astype(normal.dtype)
    normal = normal.astype(x.dtype)
    return _gated(normal, weights, name) if norm.gate_rank else normal


def _gated(x: NamedArray, weights: NamedWeights, name: str) -> NamedArray:
    """Multiply each dimension by a number between 0 and 1 that depends on all."""
    down = hax.dot(x, weights[f"{name}_gate_down"], axis="embed")
    inner = hax.named(activate(down.array, Activation.SILU), down.axes)
    gate = hax.dot(inner, weights[f"{name}_gate_up"], axis="rank")
    return x * hax.named(jax.nn.sigmoid(gate.array), gate.axes).rearrange(x.axes)
