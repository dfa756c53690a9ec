"""The recurrent part of a layer, over named arrays: its projections, and the state that it keeps for each sequence."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import haliax as hax
import jax
import jax.numpy as jnp
from haliax import NamedArray
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, DTypeLike, Float

from service.device.lazy_zeros import lazy_zeros
from service.device.mesh import MESH_AXES, DeviceMesh
from service.kernels.paging import Paging, Regions
from service.kernels.states.convolution import convolve
from service.kernels.states.delta import Tokens, run_delta
from service.kernels.states.native import native_convolve, native_delta, native_ssd
from service.kernels.states.ssd import Tokens as StateSpaceTokens
from service.kernels.states.ssd import run_ssd
from service.models.description import BranchConvolutions, GatedDelta, ShortConvolution, State, StateSpace
from service.models.interface import Cache
from service.models.multiply import Multiply, NamedWeights, scaled
from service.models.norm import normalized

type Arrays = tuple[Array, ...]
type Convolve = Callable[[Array, Array, Array, Paging], tuple[Array, Array]]

UNIT_EPS = 1e-6  # in the length of a query or a key. Source: transformers `modeling_qwen3_5.py` (l2norm)
# Of what layers keep: matrices, and last inputs. The channels of a key head follow each other. A group of Mamba-2's
# heads is split as a key head is.
KEY = "key"  # what of `BranchConvolutions` is split as heads are
MATRICES, LAST_INPUTS = ("slot", "key_head", "group", "key_dim", "value_dim"), ("earlier", "slot", "state_channel")


def initial_state(description: State, num_slots: int, dtype: DTypeLike, mesh: DeviceMesh | None) -> Cache:
    """Return the empty slots of a layer, which on a CPU occupy memory from when they are written.

    Args:
        description: the recurrent part of the layer.
        num_slots: how many states there is room for.
        dtype: of the last inputs, which are activations; matrices are float32.
        mesh: the devices.
    """
    zeros = lazy_zeros if mesh is not None and mesh.is_host else jnp.zeros
    if isinstance(description, BranchConvolutions):
        sizes = description.channels.items()
        return {name: zeros((description.width - 1, num_slots, size), dtype) for name, size in sizes}
    last_inputs = zeros((description.width - 1, num_slots, description.num_channels), dtype)
    if isinstance(description, ShortConvolution):
        return last_inputs
    if isinstance(description, StateSpace):
        heads = (description.num_groups, description.group_size, description.head_dim, description.state_dim)
    else:
        heads = (description.num_key_heads, description.group_size, description.key_dim, description.value_dim)
    return zeros((num_slots, *heads), jnp.float32), last_inputs


def state_shardings(description: State, mesh: DeviceMesh) -> Cache:
    """Return the shardings of the slots of a layer, on several devices."""
    specs = _state_partitions(description)
    return jax.tree.map(lambda spec: NamedSharding(mesh.named, spec), specs)


def _state_partitions(description: State) -> Cache:
    inputs = _partition(LAST_INPUTS)
    if isinstance(description, BranchConvolutions):
        return {name: inputs if name == KEY else PartitionSpec() for name in description.channels}
    return inputs if isinstance(description, ShortConvolution) else (_partition(MATRICES), inputs)


def _partition(axes: Iterable[str]) -> PartitionSpec:
    return PartitionSpec(*(MESH_AXES.get(axis) for axis in axes))


@dataclass(frozen=True)
class StepState:
    """What the recurrent parts of all layers of a step share."""

    multiply: Multiply
    regions: Regions

    def __call__(
        self, x: NamedArray, description: State, weights: NamedWeights, cache: Cache
    ) -> tuple[NamedArray, Cache]:
        """Go on from the state before each token; the returned cache holds the states after the last ones."""
        assert not isinstance(description, BranchConvolutions), "those are within branches, and none by themselves"
        if isinstance(description, ShortConvolution):
            return self._convolve(x, description, weights, cache)
        if isinstance(description, StateSpace):
            return self._add(x, description, weights, cache)
        return self._correct(x, description, weights, cache)

    def _convolve(
        self, x: NamedArray, description: ShortConvolution, weights: NamedWeights, cache: Cache
    ) -> tuple[NamedArray, Cache]:
        with jax.named_scope("state_in"):
            parts = self.multiply(x, weights, "state_in", ("embed",))
            if description.has_bias:
                parts = parts + weights["state_in_bias"]
        gated = parts.rearrange(("token", "part", "state_channel"))

        def run(own: Arrays, weights: Arrays, cache: Cache, paging: Paging) -> tuple[Array, Cache]:
            before, after, inputs = (own[0][:, :, part] for part in range(3))
            convolved, cache = self._convolve_for(inputs)(before * inputs, weights[0], cache, paging)
            if description.has_bias:
                convolved = convolved + weights[1].astype(convolved.dtype)[None, None]
            return after * convolved.astype(after.dtype), cache

        taps = [weights[name] for name in ("taps", "taps_bias") if name in weights]
        results = ("token", "state_channel")
        with jax.named_scope("convolution"):
            parts_of_cache = _state_partitions(description)
            mixed, cache = self._on_each_device(parts_of_cache, run, (gated,), cache, weights=taps, results=results)
        with jax.named_scope("state_out"):
            out = self.multiply.constrained(self.multiply(mixed, weights, "state_out", ("state_channel",)))
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
        axes = ("token", "key_head", "head_channel")
        rows = projected.rearrange(axes).array
        convolved, gates = rows[:, :, : description.head_channels], rows[:, :, description.head_channels :]
        decay, bias = (weights[name].array.astype(jnp.float32) for name in ("decay", "decay_bias"))
        shares = jax.nn.sigmoid(numbers[:, :, :group])
        if description.most_share != 1:
            shares = shares * description.most_share
        decays = -jnp.exp(decay)[None] * jax.nn.softplus(numbers[:, :, group:] + bias[None])

        def run(own: Arrays, weights: Arrays, cache: Cache, paging: Paging) -> tuple[Array, Cache]:
            (states, last_inputs), (convolved, decays, shares) = cache, own
            flat = convolved.reshape(*convolved.shape[:2], -1)
            taps = weights[0].reshape(flat.shape[2], -1)
            mixed, last_inputs = self._convolve_for(flat)(flat, taps, last_inputs, paging)
            # Rounded as activations are.
            active = jax.nn.silu(mixed).astype(convolved.dtype).astype(jnp.float32).reshape(convolved.shape)
            dim = description.key_dim
            values = active[..., 2 * dim :].reshape(*decays.shape, description.value_dim)
            queries, keys = _of_unit_length(active[..., :dim]), _of_unit_length(active[..., dim : 2 * dim])
            tokens = Tokens(queries * dim**-0.5, keys, values, decays, shares)
            if self._is_native(flat):
                read, states = native_delta(tokens, states, paging)
            elif self._is_by_slot(flat):
                from service.kernels.states.tpu import tpu_delta  # other platforms start without Pallas

                read, states = tpu_delta(tokens, states, paging)
            else:
                read, states = run_delta(tokens, states, paging, is_in_turn=self._is_in_turn)
            return read.astype(convolved.dtype), (states, last_inputs)

        by_value_head = (hax.named(array, ("token", "key_head", "group")) for array in (decays, shares))
        of_tokens = (hax.named(convolved, axes), *by_value_head)
        results = ("token", "key_head", "group", "value_dim")
        with jax.named_scope("gated_delta"):
            by_head, cache = self._on_each_device(
                _state_partitions(description), run, of_tokens, cache, weights=[weights["taps"]], results=results
            )
        normal = normalized(by_head, description.norm, weights, "state_norm", "value_dim").array
        active = jax.nn.silu(gates.astype(jnp.float32)).reshape(normal.shape)
        gated = (normal.astype(jnp.float32) * active).astype(rows.dtype)
        merged = hax.named(gated.reshape(len(gated), heads * group * description.value_dim), ("token", "heads"))
        with jax.named_scope("state_out"):
            return self.multiply.constrained(self.multiply(merged, weights, "state_out", ("heads",))), cache

    def _add(
        self, x: NamedArray, description: StateSpace, weights: NamedWeights, cache: Cache
    ) -> tuple[NamedArray, Cache]:
        """Source: transformers `modeling_bamba.py` (BambaMixer), `modeling_falcon_h1.py` (FalconH1Mixer)."""
        rows, steps = self._projected(scaled(x, description.factors.input), description, weights)
        convolved, gates = rows[:, :, : description.group_channels], rows[:, :, description.group_channels :]
        decays = -jnp.exp(_wide(weights, "decay"))[None] * steps
        names = ("taps", "skip", "taps_bias") if description.has_taps_bias else ("taps", "skip")

        def run(own: Arrays, weights: Arrays, cache: Cache, paging: Paging) -> tuple[Array, Cache]:
            (states, last_inputs), (convolved, decays, steps) = cache, own
            taps, skip, *bias = weights
            flat = convolved.reshape(*convolved.shape[:2], -1)
            mixed, last_inputs = self._convolve_for(flat)(flat, taps.reshape(flat.shape[2], -1), last_inputs, paging)
            if bias:
                mixed = mixed + bias[0].astype(jnp.float32).reshape(-1)[None, None]
            # Rounded as activations are.
            active = jax.nn.silu(mixed).astype(convolved.dtype).astype(jnp.float32).reshape(convolved.shape)
            width, dim = description.group_width, description.state_dim
            values = active[..., :width].reshape(*steps.shape, description.head_dim)
            writes, reads = active[..., width : width + dim], active[..., width + dim :]
            tokens = StateSpaceTokens(values * steps[..., None], writes, reads, decays)
            if self._is_native(flat):
                read, states = native_ssd(tokens, states, paging)
            elif self._is_by_slot(flat):
                from service.kernels.states.tpu import tpu_ssd

                read, states = tpu_ssd(tokens, states, paging)
            else:
                read, states = run_ssd(tokens, states, paging, is_in_turn=self._is_in_turn)
            return read + values * skip.astype(jnp.float32)[None, None, :, :, None], (states, last_inputs)

        by_head = ("token", "key_head", "group")
        of_tokens = (
            hax.named(convolved, ("token", "key_head", "head_channel")),
            hax.named(decays, by_head),
            hax.named(steps, by_head),
        )
        with jax.named_scope("state_space"):
            read, cache = self._on_each_device(
                _state_partitions(description),
                run,
                of_tokens,
                cache,
                weights=[weights[name] for name in names],
                results=(*by_head, "head_dim"),
            )
        merged = _gated(read.array, gates, description, weights).astype(rows.dtype)
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

    @property
    def _is_in_turn(self) -> bool:
        """Whether sequences and rows are computed one after the other; see `run_recurrence`."""
        return self.multiply.mesh is None or self.multiply.mesh.is_host

    def _is_native(self, inputs: Float[Array, "seq token channel"]) -> bool:
        """Return whether C++ computes tokens."""
        is_one = inputs.shape[1] == 1 and inputs.dtype == jnp.float32
        return is_one and self.multiply.products.native.has_products

    def _is_by_slot(self, inputs: Float[Array, "seq token channel"]) -> bool:
        """Return whether a kernel for TPUs computes tokens."""
        return inputs.shape[1] == 1 and self.multiply.mesh is not None and self.multiply.mesh.platform == "tpu"

    def _convolve_for(self, inputs: Float[Array, "seq token channel"]) -> Convolve:
        return native_convolve if self._is_native(inputs) else convolve

    def convolve_branch(
        self, name: str, x: NamedArray, weights: NamedWeights, last_inputs: Array
    ) -> tuple[NamedArray, Array]:
        """Convolve what a branch has of each token with what it had of those before; return the last inputs, too."""
        axes = tuple(axis.name for axis in x.axes)

        def run(own: Arrays, weights: Arrays, cache: Cache, paging: Paging) -> tuple[Array, Cache]:
            flat = own[0].reshape(*own[0].shape[:2], -1)
            taps = weights[0].reshape(-1, weights[0].shape[-1])
            convolved, cache = self._convolve_for(flat)(flat, taps, cache, paging)
            return convolved.astype(own[0].dtype).reshape(own[0].shape), cache

        stored = weights[f"{name}_taps"]  # the token's own first
        taps = hax.named(stored.array[..., ::-1], (*axes[1:], "tap"))
        of_cache = _partition(LAST_INPUTS) if name == KEY else PartitionSpec()
        with jax.named_scope("convolution"):
            return self._on_each_device(of_cache, run, (x,), last_inputs, weights=[taps], results=axes)

    def _on_each_device(
        self,
        of_cache: Cache,
        run: Callable[[Arrays, Arrays, Cache, Paging], tuple[Array, Cache]],
        tokens: Sequence[NamedArray],
        cache: Cache,
        *,
        weights: Sequence[NamedArray],
        results: tuple[str, ...],
    ) -> tuple[NamedArray, Cache]:
        """Call a function for the tokens of each region, on each device with its part of the heads or channels.

        Args:
            of_cache: how the devices share the slots of the layer's states.
            run: takes what it needs of tokens `[seq, token, ...]`, weights, the cache and the paging; see
                `Regions.attend`. No head or channel needs what belongs to another.
            tokens: what it needs of them, `[token, ...]`.
            cache: the slots of the layer's states.
            weights: those that it needs.
            results: the axes of what it returns, for all tokens of the step.
        """
        mesh = self.multiply.mesh
        if mesh is not None and mesh.num_devices > 1:
            own = tuple(PartitionSpec(None, *_partition(axis.name for axis in array.axes)) for array in tokens)
            of_weights = tuple(_partition(axis.name for axis in array.axes) for array in weights)
            made = PartitionSpec(None, *_partition(results)), of_cache
            specs = (own, of_weights, of_cache, PartitionSpec())
            run = jax.shard_map(run, mesh=mesh.named, in_specs=specs, out_specs=made, check_vma=False)
        arrays = tuple(weight.array for weight in weights)

        def attend(own: Arrays, cache: Cache, paging: Paging) -> tuple[Array, Cache]:
            return run(own, arrays, cache, paging)

        computed, cache = self.regions.attend(attend, tuple(array.array for array in tokens), cache)
        return hax.named(computed, results), cache


@dataclass
class LayerConvolutions:
    """The convolutions within the branches of one layer, in a step."""

    step: StepState
    weights: NamedWeights
    last_inputs: dict[str, Array]  # by what is convolved; a call changes its own

    def __call__(self, name: str, x: NamedArray) -> NamedArray:
        """Convolve keys, or what a branch adds; where the layer has no such convolution, return the argument."""
        if name not in self.last_inputs:
            return x
        convolved, after = self.step.convolve_branch(name, x, self.weights, self.last_inputs[name])
        self.last_inputs = {**self.last_inputs, name: after}
        return convolved


def _of_unit_length(vectors: Float[Array, "*any dim"]) -> Float[Array, "*any dim"]:
    return vectors * jax.lax.rsqrt(jnp.sum(jnp.square(vectors), axis=-1, keepdims=True) + UNIT_EPS)


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
