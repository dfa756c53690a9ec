"""Mamba-2 in a layer, over named arrays: its projections, its convolution, and the state of each sequence."""

import math
from dataclasses import dataclass

import haliax as hax
import jax
import jax.numpy as jnp
from haliax import NamedArray
from jaxtyping import Array, Float

from service.kernels.paging import Paging, Regions
from service.kernels.states.convolution import convolve
from service.kernels.states.ssd import Tokens, run_ssd
from service.models.description import StateSpace
from service.models.interface import Cache
from service.models.multiply import Multiply, NamedWeights, scaled
from service.models.norm import normalized


@dataclass(frozen=True)
class StepStateSpace:
    """What the layers with Mamba-2 of a step share."""

    multiply: Multiply
    regions: Regions

    def __call__(
        self, x: NamedArray, description: StateSpace, weights: NamedWeights, cache: Cache
    ) -> tuple[NamedArray, Cache]:
        """Go on from the state before each token; the returned cache holds the states after the last ones.

        Source: transformers `models/bamba/modeling_bamba.py` (BambaMixer), `models/falcon_h1/modeling_falcon_h1.py`
        """
        x = scaled(x, description.factors.input)
        rows, steps = self._projected(x, description, weights)
        convolved, gates = rows[:, :, : description.group_channels], rows[:, :, description.group_channels :]
        decays = -jnp.exp(_wide(weights, "decay"))[None] * steps
        is_in_turn = self.multiply.mesh is None or self.multiply.mesh.is_host
        taps = weights["taps"].array.reshape(description.num_channels, -1)

        def run(own: tuple[Array, ...], cache: Cache, paging: Paging) -> tuple[Array, Cache]:
            (states, last_inputs), (convolved, decays, steps) = cache, own
            flat = convolved.reshape(*convolved.shape[:2], description.num_channels)
            mixed, last_inputs = convolve(flat, taps, last_inputs, paging)
            if description.has_taps_bias:
                mixed = mixed + _wide(weights, "taps_bias").reshape(-1)[None, None]
            # Rounded as activations are.
            active = jax.nn.silu(mixed).astype(convolved.dtype).astype(jnp.float32).reshape(convolved.shape)
            width, dim = description.group_width, description.state_dim
            values = active[..., :width].reshape(*steps.shape, description.head_dim)
            writes, reads = active[..., width : width + dim], active[..., width + dim :]
            tokens = Tokens(values * steps[..., None], writes, reads, decays)
            read, states = run_ssd(tokens, states, paging, is_in_turn=is_in_turn)
            return read + values * _wide(weights, "skip")[None, None, :, :, None], (states, last_inputs)

        with jax.named_scope("state_space"):
            read, cache = self.regions.attend(run, (convolved, decays, steps), cache)
        merged = _gated(read, gates, description, weights).astype(rows.dtype)
        named = hax.named(merged.reshape(len(merged), description.result_size), ("token", "heads"))
        with jax.named_scope("state_out"):
            out = self.multiply.constrained(self.multiply(named, weights, "state_out", ("heads",)))
        return (out + weights["state_out_bias"] if description.has_output_bias else out), cache

    def _projected(
        self, x: NamedArray, description: StateSpace, weights: NamedWeights
    ) -> tuple[Float[Array, "token group channel"], Float[Array, "token group head"]]:
        """Return what is convolved and the gates, group by group, and the steps of the heads, in float32."""
        factors = description.factors
        with jax.named_scope("state_in"):
            projected = self.multiply(x, weights, "state_in", ("embed",))
            of_heads = self.multiply(x, weights, "state_steps", ("embed",), dtype=jnp.float32)
            steps = of_heads.rearrange(("token", "key_head", "group")).array
        rows = projected.rearrange(("token", "key_head", "head_channel")).array
        if description.has_bias:
            rows = rows + weights["state_in_bias"].array.astype(rows.dtype)[None]
            steps = steps + _wide(weights, "state_steps_bias")[None]
        of_parts = (factors.values, factors.writes, factors.reads, factors.gates)
        if any(factor != 1 for factor in of_parts):
            sizes = (description.group_width, description.state_dim, description.state_dim, description.group_width)
            by_channel = jnp.concatenate(
                [jnp.full(size, factor, rows.dtype) for size, factor in zip(sizes, of_parts, strict=True)]
            )
            rows = rows * by_channel[None, None]
        steps = jax.nn.softplus(steps * factors.steps + _wide(weights, "decay_bias")[None])
        if description.least_step > 0 or description.most_step < math.inf:
            steps = jnp.clip(steps, description.least_step, description.most_step)
        return rows, steps


def _gated(
    read: Float[Array, "token group head head_dim"],
    gates: Float[Array, "token group channel"],
    description: StateSpace,
    weights: NamedWeights,
) -> Float[Array, "token group channel"]:
    """Return what is read, in float32, gated before or after it is normalized over the channels of each group."""
    results, active = read.reshape(gates.shape), jax.nn.silu(gates.astype(jnp.float32))
    if description.norm is None:
        return results * active
    results = results * active if description.is_norm_gated else results
    named = hax.named(results, ("token", "key_head", "group_channel"))
    normal = normalized(named, description.norm, weights, "state_norm", "group_channel").array
    return normal if description.is_norm_gated else normal * active


def _wide(weights: NamedWeights, name: str) -> Array:
    return weights[name].array.astype(jnp.float32)
