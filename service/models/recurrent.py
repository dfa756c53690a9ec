"""The recurrent part of a layer, over named arrays: its projections, and the state that it keeps for each sequence."""

from dataclasses import dataclass

import haliax as hax
import jax
import jax.numpy as jnp
from haliax import NamedArray
from jaxtyping import Array, DTypeLike, Float

from service.kernels.paging import Paging, Regions
from service.kernels.states.convolution import convolve
from service.kernels.states.delta import Tokens, run_delta
from service.models.description import GatedDelta, ShortConvolution, State, StateSpace
from service.models.interface import Cache
from service.models.multiply import Multiply, NamedWeights
from service.models.norm import normalized

UNIT_EPS = 1e-6  # in the length of a query or a key. Source: transformers `modeling_qwen3_5.py` (l2norm)


def initial_state(description: State, num_slots: int, dtype: DTypeLike) -> Cache:
    """Return the empty slots of a layer.

    Args:
        description: the recurrent part of the layer.
        num_slots: how many states there is room for.
        dtype: of the last inputs, which are activations; matrices are float32.
    """
    last_inputs = jnp.zeros((description.width - 1, num_slots, description.num_channels), dtype)
    if isinstance(description, ShortConvolution):
        return last_inputs
    if isinstance(description, StateSpace):
        heads = (description.num_groups, description.group_size, description.head_dim, description.state_dim)
    else:
        heads = (description.num_key_heads, description.group_size, description.key_dim, description.value_dim)
    return jnp.zeros((num_slots, *heads), jnp.float32), last_inputs


@dataclass(frozen=True)
class StepState:
    """What the recurrent parts of all layers of a step share."""

    multiply: Multiply
    regions: Regions
    is_in_turn: bool  # as `run_delta` takes it

    def __call__(
        self, x: NamedArray, description: ShortConvolution | GatedDelta, weights: NamedWeights, cache: Cache
    ) -> tuple[NamedArray, Cache]:
        """Go on from the state before each token; the returned cache holds the states after the last ones."""
        if isinstance(description, ShortConvolution):
            return self._convolve(x, description, weights, cache)
        return self._correct(x, description, weights, cache)

    def _convolve(
        self, x: NamedArray, description: ShortConvolution, weights: NamedWeights, cache: Cache
    ) -> tuple[NamedArray, Cache]:
        with jax.named_scope("state_in"):
            parts = self.multiply(x, weights, "state_in", ("embed",))
            if description.has_bias:
                parts = parts + weights["state_in_bias"]
        gated = parts.rearrange(("token", "part", "channel")).array

        def run(own: tuple[Array, ...], cache: Cache, paging: Paging) -> tuple[Array, Cache]:
            before, after, inputs = (own[0][:, :, part] for part in range(3))
            convolved, cache = convolve(before * inputs, weights["taps"].array, cache, paging)
            if description.has_bias:
                convolved = convolved + weights["taps_bias"].array.astype(convolved.dtype)[None, None]
            return after * convolved.astype(after.dtype), cache

        with jax.named_scope("convolution"):
            mixed, cache = self.regions.attend(run, (gated,), cache)
        named = hax.named(mixed, ("token", "channel"))
        with jax.named_scope("state_out"):
            out = self.multiply.constrained(self.multiply(named, weights, "state_out", ("channel",)))
        return (out + weights["state_out_bias"] if description.has_bias else out), cache

    def _correct(
        self, x: NamedArray, description: GatedDelta, weights: NamedWeights, cache: Cache
    ) -> tuple[NamedArray, Cache]:
        """Source: transformers `models/qwen3_5/modeling_qwen3_5.py` (Qwen3_5GatedDeltaNet)."""
        heads, group = description.num_key_heads, description.group_size
        with jax.named_scope("state_in"):
            projected = self.multiply(x, weights, "state_in", ("embed",))
            inputs = x.rearrange(("token", "embed")).array
            numbers = jnp.einsum(
                "te,hge->thg", inputs, weights["state_gates"].array, preferred_element_type=jnp.float32
            )
        rows = projected.rearrange(("token", "key_head", "head_channel")).array
        convolved, gates = rows[:, :, : description.head_channels], rows[:, :, description.head_channels :]
        decay, bias = (weights[name].array.astype(jnp.float32) for name in ("decay", "decay_bias"))
        shares = jax.nn.sigmoid(numbers[:, :, :group])
        if description.most_share != 1:
            shares = shares * description.most_share
        decays = -jnp.exp(decay)[None] * jax.nn.softplus(numbers[:, :, group:] + bias[None])
        taps = weights["taps"].array.reshape(description.num_channels, -1)

        def run(own: tuple[Array, ...], cache: Cache, paging: Paging) -> tuple[Array, Cache]:
            (states, last_inputs), (convolved, decays, shares) = cache, own
            flat = convolved.reshape(*convolved.shape[:2], description.num_channels)
            mixed, last_inputs = convolve(flat, taps, last_inputs, paging)
            # Rounded as activations are.
            active = jax.nn.silu(mixed).astype(convolved.dtype).astype(jnp.float32).reshape(convolved.shape)
            dim = description.key_dim
            values = active[..., 2 * dim :].reshape(*decays.shape, description.value_dim)
            queries, keys = _of_unit_length(active[..., :dim]), _of_unit_length(active[..., dim : 2 * dim])
            tokens = Tokens(queries * dim**-0.5, keys, values, decays, shares)
            read, states = run_delta(tokens, states, paging, is_in_turn=self.is_in_turn)
            return read, (states, last_inputs)

        with jax.named_scope("gated_delta"):
            read, cache = self.regions.attend(run, (convolved, decays, shares), cache)
        by_head = hax.named(read.astype(rows.dtype), ("token", "key_head", "group", "value_dim"))
        normal = normalized(by_head, description.norm, weights, "state_norm", "value_dim").array
        active = jax.nn.silu(gates.astype(jnp.float32)).reshape(normal.shape)
        gated = (normal.astype(jnp.float32) * active).astype(rows.dtype)
        merged = hax.named(gated.reshape(len(gated), heads * group * description.value_dim), ("token", "heads"))
        with jax.named_scope("state_out"):
            return self.multiply.constrained(self.multiply(merged, weights, "state_out", ("heads",))), cache


def _of_unit_length(vectors: Float[Array, "*any dim"]) -> Float[Array, "*any dim"]:
    return vectors * jax.lax.rsqrt(jnp.sum(jnp.square(vectors), axis=-1, keepdims=True) + UNIT_EPS)
