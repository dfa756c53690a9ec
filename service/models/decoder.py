"""The forward pass of every decoder, over Haliax axes, as its description says.

Weights are stored `[out, in]`, as in a checkpoint. Those that multiply the same input are one array, which runs faster:
query, key and value; gate and up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from jaxtyping import Array, Bool, Float, Int

from service.device.mesh import DeviceMesh
from service.kernels.attention import AttentionKernel, MemoryKernel
from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import Paging, Regions
from service.kernels.products.linear import PLAIN, Products
from service.kernels.products.quantized import Fp8Products
from service.kernels.reference import PagedReference
from service.kernels.sharded import ShardedAttention
from service.models.adapter_arrays import AdapterShapes, adapter_specs, weight_parts
from service.models.attention import MemoryAttention, StepAttention
from service.models.decoder_weights import decoder_weight_specs
from service.models.description import (
    BranchConvolutions,
    DecoderConfig,
    ImageEncoder,
    Layer,
    PatchEncoder,
    SpeechEncoder,
)
from service.models.feed_forward import feed_forward, of_layer_input, with_experts_beside
from service.models.interface import Cache, LayerGroup, LayerGroupInputs, Shardings, Weights
from service.models.layer_groups import decoder_groups
from service.models.multiply import Multiply, NamedWeights, TokenAdapters, scaled
from service.models.norm import normalized
from service.models.patches import PatchEncoding
from service.models.quantization import Quantization, scale_name
from service.models.recurrent import LayerConvolutions, StepState, initial_state, state_shardings
from service.models.rope import RopeConfig
from service.models.rotation import Rotation
from service.models.speech import SpeechEncoding
from service.models.vision import ImageEncoding
from service.models.weight_spec import WeightSpec

FLOAT32 = np.dtype(np.float32)
REFERENCE = PagedReference()


@dataclass(frozen=True)
class Decoder:
    """A decoder of one description, in one dtype; a `PagedDecoder`."""

    config: DecoderConfig
    dtype: np.dtype = FLOAT32  # of activations, norms and biases
    kernel: AttentionKernel = REFERENCE
    products: Products = PLAIN
    quantization: Quantization = Quantization.NONE
    mesh: DeviceMesh | None = None  # devices that share each step, by KV heads, MLP and vocabulary; None for one
    kv_dtype: np.dtype | None = None  # of the cache; None for that of activations
    fp8: Fp8Products = Fp8Products.FUSED  # of weights in FP8
    weight_dtype: np.dtype | None = None  # of weights of products that are not quantized; None for that of activations
    adapters: AdapterShapes | None = None  # the slots of adapters; None without any

    @property
    def shardings(self) -> Shardings | None:
        """The shardings of arrays on several devices; None on one device."""
        kernel = self._kernel
        if not isinstance(kernel, ShardedAttention):
            return None
        caches = (
            kernel.cache_sharding
            if group.shared
            else tuple(self._layer_sharding(kernel, self.config.layers[number]) for number in group.layers)
            for group in self.layer_groups
        )
        return Shardings(tuple(caches), kernel.mesh.replicated)

    def _layer_sharding(self, kernel: ShardedAttention, layer: Layer) -> Any:
        state = () if layer.state is None else state_shardings(layer.state, kernel.mesh)
        if layer.attention is None:
            return state
        return kernel.cache_sharding if layer.state is None else (kernel.cache_sharding, state)

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return self.config.vocab_size

    @property
    def hidden_size(self) -> int:
        """The width of the hidden states."""
        return self.config.hidden_size

    @property
    def context_len(self) -> int:
        """The longest sequence, in tokens, that the model was made for."""
        return self.config.context_len

    @property
    def memory_len(self) -> int:
        """The positions of a sequence's memory; 0 of a model without an encoder."""
        encoder = self.config.speech_encoder
        return 0 if encoder is None else encoder.num_positions

    @property
    def encoder(self) -> SpeechEncoding | ImageEncoding | None:
        """The encoder of audio, or of images of one shape."""
        config, of_all = self.config.media_encoder, (self.weight_specs(), self.dtype, self.products)
        match config:
            case SpeechEncoder():
                return SpeechEncoding(config, *of_all)
            case ImageEncoder():
                return ImageEncoding(config, *of_all)
            case _:
                return None

    def encoder_of(self, num_rows: int) -> SpeechEncoding | ImageEncoding | PatchEncoding | None:
        """Return the encoder of media with a maximum number of rows; None of a model without one."""
        config = self.config.image_encoder
        if not isinstance(config, PatchEncoder):
            return self.encoder
        return PatchEncoding(config, self.weight_specs(), self.dtype, self.products, num_rows, self.hidden_size)

    def weight_specs(self) -> tuple[WeightSpec, ...]:
        """Name every weight array, and those of the slots of adapters."""
        specs = decoder_weight_specs(self.config, self.dtype, self.quantization, self.weight_dtype)
        return specs if self.adapters is None else (*specs, *adapter_specs(specs, self.adapters, self.dtype))

    @property
    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """The layers in order, cut into groups that are compiled separately."""
        return decoder_groups(self.config, self.weight_specs())

    def initial_cache(self, layout: CacheLayout, group: LayerGroup) -> Cache:
        """Return a layer group's empty cache: that of each of its layers; of layers that share others' none."""
        own_layers = () if group.shared else group.layers
        return tuple(self._layer_cache(layout, self.config.layers[number]) for number in own_layers)

    def _layer_cache(self, layout: CacheLayout, layer: Layer) -> Cache:
        """Return the pages of a layer, its states, both in this order where it has both, or nothing."""
        state = () if layer.state is None else initial_state(layer.state, layout.num_states, self.dtype, self.mesh)
        if layer.attention is None:
            return state
        pages = self._kernel.initial_cache(
            layout.of(layer.attention.window),
            num_kv_heads=layer.attention.num_kv_heads,
            head_dim=layer.attention.head_dim,
            dtype=self.dtype if self.kv_dtype is None else self.kv_dtype,
        )
        return pages if layer.state is None else (pages, state)

    def embed(
        self, weights: Weights, token_ids: Int[Array, " token"], positions: Int[Array, "*axis token"]
    ) -> tuple[Float[Array, "token hidden"], tuple[Rotation, ...]]:
        """Return the tokens' embeddings, and the RoPE tables of their positions, one for each rotation."""
        config, named = self.config, self._named(weights, self.weight_specs())
        with jax.named_scope("embed"):
            hidden = self.embedded(named, hax.named(token_ids, "token"))
            if config.num_positions:
                # Padding may lie past the last position.
                learned = weights["positions"].at[positions].get(mode="clip")
                hidden = hidden + hax.named(learned, ("token", "embed"))
            # The multiplier is rounded as a parameter is. Source: transformers `modeling_gemma.py` (normalizer)
            multiplier = float(np.asarray(config.embed_multiplier, self.dtype))
            hidden = self._multiply.constrained(scaled(hidden, multiplier))
            hidden = normalized(hidden, config.embed_norm, named, "embed_norm")
        return hidden.rearrange(("token", "embed")).array, self.rotations(positions)

    def rotations(self, positions: Int[Array, "*axis token"]) -> tuple[Rotation, ...]:
        """Return the RoPE tables of positions, one for each rotation."""
        return tuple(self._rotation(rope, positions) for rope in self.config.rotations)

    def per_layer_inputs(
        self,
        weights: Weights,
        token_ids: Int[Array, " token"],
        hidden: Float[Array, "token hidden"],
        is_media: Bool[Array, " token"] | None = None,
    ) -> tuple[Float[Array, "layer token size"], ...]:
        """Return the inputs of the layers of each group besides the hidden states; of a model without them, nothing.

        Source: transformers `models/gemma4/modeling_gemma4.py` (get_per_layer_inputs, project_per_layer_inputs)
        """
        description = self.config.per_layer_embeddings
        if description is None:
            return ()
        named = self._named(weights, self.weight_specs())
        if is_media is not None:
            token_ids = jnp.where(is_media, description.media_token_id, token_ids)
        with jax.named_scope("per_layer_inputs"):
            ids = hax.named(jnp.minimum(token_ids, description.vocab_size - 1), "token")
            multiplier = float(np.asarray(description.size**0.5, self.dtype))
            of_token = scaled(named["per_layer_embed"].take("vocab", ids).astype(self.dtype), multiplier)
            states = hax.named(hidden, ("token", "embed"))
            projected = self._multiply.constrained(
                self._multiply(states, named, "per_layer_model_projection", ("embed",))
            )
            projected = scaled(projected, self.hidden_size**-0.5)
            projected = normalized(projected, description.norm, named, "per_layer_norm", "size")
            both = scaled(projected + of_token, 2.0**-0.5).rearrange(("layer", "token", "size")).array
        return tuple(both[group.layers.start : group.layers.stop] for group in self.layer_groups)

    def run_layer_group(
        self, group: LayerGroup, weights: Sequence[jax.Array], cache: Cache, inputs: LayerGroupInputs
    ) -> tuple[Float[Array, "token hidden"], Cache]:
        """Run a group's layers; the returned cache holds the tokens' keys and values."""
        hidden, new_cache, *_ = self._run(group, weights, cache, inputs, None)
        return hidden, new_cache

    def show_layer_group(
        self,
        group: LayerGroup,
        weights: Sequence[jax.Array],
        cache: Cache,
        inputs: LayerGroupInputs,
        shown: Int[Array, " tap"],
    ) -> tuple[Float[Array, "token hidden"], Cache, Float[Array, "tap token hidden"]]:
        """Run a group's layers, and return the hidden states before some, by their numbers in the group, too.

        The number after the last one's stands for the hidden states behind it.
        """
        hidden, new_cache, _, before = self._run(group, weights, cache, inputs, None)
        return hidden, new_cache, jnp.stack([*before, hidden])[shown]

    def attend_layer_group(
        self,
        group: LayerGroup,
        weights: Sequence[jax.Array],
        cache: Cache,
        inputs: LayerGroupInputs,
        heads: Int[Array, "layer head"],
    ) -> tuple[Float[Array, "token hidden"], Cache, Float[Array, "layer head prompt_token position"]]:
        """Run a group's layers, and return the scores by which heads of each layer attend to the memory, too."""
        hidden, new_cache, scores, _ = self._run(group, weights, cache, inputs, heads)
        return hidden, new_cache, jnp.stack(scores)

    def _run(
        self,
        group: LayerGroup,
        weights: Sequence[jax.Array],
        cache: Cache,
        inputs: LayerGroupInputs,
        heads: Int[Array, "layer head"] | None,
    ) -> tuple[
        Float[Array, "token hidden"],
        Cache,
        list[Float[Array, "head prompt_token position"]],
        list[Float[Array, "token hidden"]],
    ]:
        """Return the hidden states, the cache, the scores of heads, and the hidden states before each layer."""
        specs = {spec.name: spec for spec in self.weight_specs()}
        named = self._named(dict(zip(group.weights, weights, strict=True)), [specs[name] for name in group.weights])
        hidden = hax.named(inputs.hidden, ("token", "embed"))
        step_multiply = replace(self._multiply, spans=inputs.regions.spans(len(inputs.hidden)))
        parts = {} if inputs.adapters is None else weight_parts(specs.values())
        new_cache, scores, before = [], [], []
        of_windows = {shared.window: read for shared, read in zip(group.shared, cache, strict=False)}
        for index, number in enumerate(group.layers):
            layer, prefix = self.config.layers[number], f"layers.{number}."
            own = {name.removeprefix(prefix): array for name, array in named.items() if name.startswith(prefix)}
            multiply = step_multiply
            if inputs.adapters is not None:
                of_layer = {key.removeprefix(prefix): value for key, value in parts.items() if key.startswith(prefix)}
                multiply = replace(step_multiply, adapters=TokenAdapters(inputs.adapters, of_layer))
            before.append(hidden.rearrange(("token", "embed")).array)
            x = _with_embedding(normalized(hidden, layer.attention_norm, own, "attention_norm"), layer, own, inputs)
            layer_cache = cache[index] if not group.shared else of_windows[_window(layer)]
            convolve = None
            if isinstance(layer.state, BranchConvolutions):
                layer_cache, last_inputs = layer_cache
                convolve = LayerConvolutions(StepState(multiply, inputs.regions), own, last_inputs)
            attended, new_layer_cache = self._attended(
                x, layer, own, layer_cache, inputs=inputs, multiply=multiply, convolve=convolve
            )
            if attended is not None:
                added = normalized(attended, layer.attention_post_norm, own, "attention_post_norm")
                hidden = hidden + scaled(added, layer.residual_multiplier)
            if layer.memory_attention is not None:
                assert inputs.memory is not None, "a sequence of a model with an encoder has a memory"
                attend_memory = MemoryAttention(multiply, self._memory_kernel, inputs.memory)
                x = normalized(hidden, layer.memory_norm, own, "memory_norm")
                if heads is not None:
                    scores.append(
                        attend_memory.scores(x, layer.memory_attention, own, new_layer_cache, heads[len(scores)])
                    )
                hidden = hidden + attend_memory(x, layer.memory_attention, own, new_layer_cache)
            if layer.feed_forward is not None:
                x = normalized(hidden, layer.mlp_norm, own, "mlp_norm")
                made = scaled(feed_forward(x, layer.feed_forward, own, multiply), layer.feed_forward_multiplier)
                if layer.beside is not None:
                    made = with_experts_beside(made, hidden, layer.beside, own, multiply)
                made = made if convolve is None else convolve("feed_forward", made)
                added = normalized(made, layer.mlp_post_norm, own, "mlp_post_norm")
                hidden = hidden + scaled(added, layer.residual_multiplier)
            if layer.per_layer_input is not None:
                assert inputs.per_layer is not None, "a model whose layers have inputs of their own makes them"
                own_input = hax.named(inputs.per_layer[index], ("token", "size"))
                hidden = hidden + of_layer_input(hidden, own_input, layer.per_layer_input, own, multiply)
            if layer.has_output_scale:
                hidden = hidden * own["output_scale"]["one", 0]
            if inputs.added is not None and number < len(inputs.added):
                hidden = hidden + hax.named(inputs.added[number], ("token", "embed"))
            new_cache.append(new_layer_cache if convolve is None else (new_layer_cache, convolve.last_inputs))
        hidden_states = hidden.rearrange(("token", "embed")).array
        return hidden_states, cache if group.shared else tuple(new_cache), scores, before

    def _attended(
        self,
        x: NamedArray,
        layer: Layer,
        own: NamedWeights,
        cache: Cache,
        *,
        inputs: LayerGroupInputs,
        multiply: Multiply,
        convolve: LayerConvolutions | None,
    ) -> tuple[NamedArray | None, Cache]:
        """Return the sum of what attention and the recurrent part give, None of a layer with neither, and its cache."""
        has_state = layer.state is not None and convolve is None
        has_both = layer.attention is not None and has_state
        pages, state = cache if has_both else (cache, cache)
        branches: list[NamedArray] = []
        if layer.attention is not None:
            attend = StepAttention(multiply, self._kernel, inputs.regions_of(layer.attention))
            rope = layer.attention.rotation
            rotation = None if rope is None else inputs.rotation[self.config.rotations.index(rope)]
            read = scaled(x, layer.attention_input_multiplier)
            attended, pages = attend(read, layer.attention, own, pages, rotation, convolve=convolve)
            attended = attended if convolve is None else convolve("attention", attended)
            branches.append(scaled(attended, layer.attention_multiplier))
        if layer.state is not None and has_state:
            gone_on, state = StepState(multiply, inputs.regions)(x, layer.state, own, state)
            branches.append(scaled(gone_on, layer.state_multiplier))
        new_cache = (pages, state) if has_both else pages if layer.attention is not None else state
        return (sum(branches[1:], branches[0]) if branches else None), new_cache

    def remember(
        self,
        group: LayerGroup,
        weights: Sequence[jax.Array],
        cache: Cache,
        output: Float[Array, "position hidden"],
        memory: Paging,
    ) -> Cache:
        """Write the keys and values of an encoder's output into pages, in every layer of a group."""
        specs = {spec.name: spec for spec in self.weight_specs()}
        named = self._named(dict(zip(group.weights, weights, strict=True)), [specs[name] for name in group.weights])
        rows, new_cache = hax.named(output, ("token", "embed")), []
        memory_attention = MemoryAttention(self._multiply, self._memory_kernel, Regions.of_prompts(memory))
        for number, layer_cache in zip(group.layers, cache, strict=True):
            attention, prefix = self.config.layers[number].memory_attention, f"layers.{number}."
            assert attention is not None, "only a model with an encoder is given its output"
            own = {name.removeprefix(prefix): array for name, array in named.items() if name.startswith(prefix)}
            new_cache.append(memory_attention.remember(rows, attention, own, layer_cache))
        return tuple(new_cache)

    def logits(
        self,
        weights: Weights,
        hidden: Float[Array, "sample hidden"],
        num_used: Int[Array, ""] | None = None,
        *,
        stays_split: bool = False,
    ) -> Float[Array, "sample vocab"]:
        """Return float32 logits of hidden states after the last layer group.

        Args:
            weights: the model's weights by name.
            hidden: hidden states after the last layer.
            num_used: how many of them are used; the logits of the others may be zero. None for all.
            stays_split: whether each device keeps the logits of its part of the vocabulary.
        """
        config, named = self.config, self._named(weights, self.weight_specs())
        unembed = "embed" if config.has_tied_embeddings else "unembed"
        states = normalized(hax.named(hidden, ("sample", "embed")), config.final_norm, named, "final_norm")
        with jax.named_scope("unembed"):
            # Sharded first, then gathered: for only replicated logits the compiler would gather the weights instead.
            spans = None if num_used is None else jnp.stack([jnp.int32(0), num_used.astype(jnp.int32)])[None]
            multiply = replace(self._multiply, spans=spans)
            product = multiply(states, named, unembed, ("embed",), dtype=jnp.float32)
            sharded = self._multiply.constrained(product)
        logits = sharded.rearrange(("sample", "vocab")).array
        if config.logits_multiplier != 1:
            logits = logits * config.logits_multiplier
        if config.logits_soft_cap is not None:
            logits = config.logits_soft_cap * jnp.tanh(logits / config.logits_soft_cap)
        return logits if self.mesh is None or stays_split else self.mesh.gather(logits)

    @property
    def _kernel(self) -> AttentionKernel | ShardedAttention:
        if self.mesh is None or self.mesh.num_devices == 1:
            return self.kernel
        return ShardedAttention(self.kernel, self.mesh)

    @property
    def _memory_kernel(self) -> MemoryKernel | ShardedAttention:
        kernel = self._kernel
        assert isinstance(kernel, MemoryKernel | ShardedAttention), "a model with an encoder is given such a kernel"
        return kernel

    @cached_property
    def _multiply(self) -> Multiply:
        return Multiply(self.products, self.fp8, self.mesh)

    def _named(self, weights: Weights, specs: Sequence[WeightSpec]) -> dict[str, NamedArray]:
        return {spec.name: hax.named(weights[spec.name], spec.axes) for spec in specs}

    def embedded(self, named: NamedWeights, token_ids: NamedArray) -> NamedArray:
        """Return the rows of the table of embeddings, as it is stored."""
        hidden = named["embed"].take("vocab", token_ids)
        scale = named.get(scale_name("embed"))
        if scale is not None:
            hidden = hidden.astype(jnp.float32) * scale.take("vocab", token_ids)
        return hidden.astype(self.dtype)

    def _rotation(self, rope: RopeConfig, positions: Int[Array, "*axis token"]) -> Rotation:
        by_axis = positions.astype(jnp.float32).reshape(-1, positions.shape[-1])
        each = [of_axis[:, None] * rope.inverse_frequencies()[None, :] for of_axis in by_axis]
        angles = each[0]
        for axis, other in enumerate(each[1:], start=1):
            angles = jnp.where((rope.axes() == axis)[None, :], other, angles)
        cosine, sine = jnp.cos(angles) * rope.attention_factor, jnp.sin(angles) * rope.attention_factor
        temperature = None
        if rope.temperature_slope:
            # Source: transformers `modeling_ministral3.py` (get_llama_4_attn_scale)
            num_before = jnp.floor(by_axis[0] / rope.original_context_len)
            temperature = (1 + rope.temperature_slope * jnp.log1p(num_before)).astype(self.dtype)
        return Rotation(cosine.astype(self.dtype), sine.astype(self.dtype), temperature)


def _with_embedding(x: NamedArray, layer: Layer, own: NamedWeights, inputs: LayerGroupInputs) -> NamedArray:
    """Return what attention reads: the embeddings before the hidden states, in a layer that reads both."""
    if layer.embedding_norm is None:
        return x
    assert inputs.embedded is not None, "a layer that reads embeddings is given them"
    embedded = hax.named(inputs.embedded, ("token", "embed"))
    return hax.concatenate("embed", [normalized(embedded, layer.embedding_norm, own, "embedding_norm"), x])


def _window(layer: Layer) -> int:
    assert layer.attention is not None, "a layer that reads the pages of another attends"
    return layer.attention.window or 0
