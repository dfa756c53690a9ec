"""The forward pass that Llama and its descendants share, over Haliax axes.

Weights are stored `[out, in]`, as in a checkpoint. Those that multiply the same input are one array, which runs faster:
query, key and value; gate and up. Query, key and value are concatenated *within* each KV head, so that splitting that
axis over devices splits all three alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from jaxtyping import Array, DTypeLike, Float, Int

from service.device.mesh import DeviceMesh
from service.kernels.attention import AttentionKernel, LayerCache, Scoring
from service.kernels.cache_layout import CacheLayout, CopyKind
from service.kernels.paging import Paging, RowPages
from service.kernels.products.linear import PLAIN, Products, linear
from service.kernels.products.quantized import Fp8Products, QuantizedWeight
from service.kernels.reference import PagedReference
from service.kernels.sharded import ShardedAttention
from service.models.config import DecoderConfig
from service.models.decoder_weights import decoder_weight_specs
from service.models.interface import Cache, LayerGroup, LayerGroupInputs, Shardings, Weights
from service.models.layer_groups import layer_groups
from service.models.quantization import Quantization, scale_name
from service.models.rotation import Rotation
from service.models.weight_spec import WeightSpec

Seq, Token, Half = "seq", "token", "half_head_dim"
FLOAT32 = np.dtype(np.float32)
REFERENCE = PagedReference()


@dataclass(frozen=True)
class Decoder:
    """A decoder of one geometry, in one dtype; a `PagedDecoder`."""

    config: DecoderConfig
    dtype: np.dtype = FLOAT32  # of activations, norms and biases
    kernel: AttentionKernel = REFERENCE
    products: Products = PLAIN
    quantization: Quantization = Quantization.NONE
    mesh: DeviceMesh | None = None  # devices that share each step, by KV heads, MLP and vocabulary; None for one
    kv_dtype: np.dtype | None = None  # of the cache; None for that of activations
    fp8: Fp8Products = Fp8Products.FUSED  # of weights in FP8
    weight_dtype: np.dtype | None = None  # of weights of products that are not quantized; None for that of activations

    @property
    def shardings(self) -> Shardings | None:
        """The shardings of arrays on several devices; None on one device."""
        kernel = self._kernel
        return (
            Shardings(kernel.cache_sharding, kernel.mesh.replicated) if isinstance(kernel, ShardedAttention) else None
        )

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

    def weight_specs(self) -> tuple[WeightSpec, ...]:
        """Name every weight array."""
        return decoder_weight_specs(self.config, self.dtype, self.quantization, self.weight_dtype)

    @property
    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """The layers in order, cut into groups that are compiled separately."""
        return layer_groups(self.config, self.weight_specs())

    def initial_cache(self, layout: CacheLayout, group: LayerGroup) -> Cache:
        """Return a layer group's empty cache: that of each of its layers."""
        config = self.config
        return tuple(
            self._kernel.initial_cache(
                layout,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                dtype=self.dtype if self.kv_dtype is None else self.kv_dtype,
            )
            for _ in group.layers
        )

    def embed(
        self, weights: Weights, token_ids: Int[Array, "seq token"], positions: Int[Array, "seq token"]
    ) -> tuple[Float[Array, "seq token hidden"], Rotation]:
        """Return the tokens' embeddings, and the RoPE tables of their positions."""
        named = self._named(weights, self.weight_specs())
        with jax.named_scope("embed"):
            hidden = self._constrained(self._embedded(named, hax.named(token_ids, (Seq, Token))))
        return hidden.rearrange((Seq, Token, "embed")).array, self._rotation(positions)

    def run_layer_group(
        self, group: LayerGroup, weights: Sequence[jax.Array], cache: Cache, inputs: LayerGroupInputs
    ) -> tuple[Float[Array, "seq token hidden"], Cache]:
        """Run a group's layers; the returned cache holds the tokens' keys and values."""
        specs = {spec.name: spec for spec in self.weight_specs()}
        named = self._named(dict(zip(group.weights, weights, strict=True)), [specs[name] for name in group.weights])
        hidden = hax.named(inputs.hidden, (Seq, Token, "embed"))
        cosine, sine = (hax.named(part, (Seq, Token, Half)) for part in inputs.rotation)
        new_cache = []
        for layer, layer_cache in zip(group.layers, cache, strict=True):
            attended, new_layer_cache = self._attention(
                named, hidden, layer_cache, inputs.paging, (cosine, sine), layer=layer
            )
            hidden = hidden + attended
            hidden = hidden + self._mlp(named, hidden, layer=layer)
            new_cache.append(new_layer_cache)
        return hidden.rearrange((Seq, Token, "embed")).array, tuple(new_cache)

    def copy_pages(self, kind: CopyKind, cache: Cache, pages: RowPages) -> Cache:
        """Copy pages of a slot, in every layer of a group."""
        return tuple(self._kernel.copy_pages(kind, cache, pages))

    def logits(self, weights: Weights, hidden: Float[Array, "sample hidden"]) -> Float[Array, "sample vocab"]:
        """Return float32 logits of hidden states after the last layer group."""
        named = self._named(weights, self.weight_specs())
        unembed = "embed" if self.config.has_tied_embeddings else "unembed"
        states = self._rms_norm(hax.named(hidden, ("sample", "embed")), named["final_norm"], "embed")
        with jax.named_scope("unembed"):
            # Sharded first, then gathered: for replicated logits alone the compiler would gather the weights instead.
            sharded = self._constrained(self._dot(states, named, unembed, ("embed",), dtype=jnp.float32))
        logits = sharded.rearrange(("sample", "vocab")).array
        return logits if self.mesh is None else self.mesh.gather(logits)

    @property
    def _kernel(self) -> AttentionKernel | ShardedAttention:
        if self.mesh is None or self.mesh.num_devices == 1:
            return self.kernel
        return ShardedAttention(self.kernel, self.mesh)

    def _constrained(self, x: NamedArray) -> NamedArray:
        """Shard an array by the names of its axes, so that a sum over a split axis is completed by an all-reduce."""
        if self.mesh is None:
            return x
        return hax.named(self.mesh.constrain(x.array, [axis.name for axis in x.axes]), x.axes)

    def _named(self, weights: Weights, specs: Sequence[WeightSpec]) -> dict[str, NamedArray]:
        return {spec.name: hax.named(weights[spec.name], spec.axes) for spec in specs}

    def _embedded(self, named: Mapping[str, NamedArray], token_ids: NamedArray) -> NamedArray:
        hidden = named["embed"].take("vocab", token_ids)
        scale = named.get(scale_name("embed"))
        if scale is not None:
            hidden = hidden.astype(jnp.float32) * scale.take("vocab", token_ids)
        return hidden.astype(self.dtype)

    def _dot(
        self,
        x: NamedArray,
        named: Mapping[str, NamedArray],
        name: str,
        axes: tuple[str, ...],
        dtype: DTypeLike | None = None,
    ) -> NamedArray:
        """Multiply by a weight and sum over `axes`, its last ones."""
        weight, scale = named[name], named.get(scale_name(name))
        kept = hax.eliminate_axes(x.axes, axes)
        out = linear(
            x.rearrange((*kept, *axes)).array,
            weight.array if scale is None else QuantizedWeight(weight.array, scale.array),
            self.products,
            num_in_axes=len(axes),
            dtype=dtype,
            fp8=self.fp8,
        )
        return hax.named(out, (*kept, *weight.axes[: -len(axes)]))

    def _qkv(self, x: NamedArray, named: Mapping[str, NamedArray], name: str) -> NamedArray:
        """Multiply by the weights of queries, keys and values."""
        if not isinstance(self._kernel, ShardedAttention):
            return self._dot(x, named, name, ("embed",))
        # As one matrix, and sliced after the barrier: else XLA:TPU lays a device's part of the weights out anew in each
        # step, in the order of the slices.
        heads = named[name].axes[:-1]
        matrices = {key: named[key].flatten_axes(heads, "qkv") for key in (name, scale_name(name)) if key in named}
        out = self._dot(x, matrices, name, ("embed",))
        return hax.named(jax.lax.optimization_barrier(out.array), out.axes).unflatten_axis("qkv", heads)

    def _rms_norm(self, x: NamedArray, scale: NamedArray, axis: str) -> NamedArray:
        """Divide by the root mean square over `axis`, in float32. Source: Zhang & Sennrich 2019, arXiv:1910.07467."""
        wide = x.astype(jnp.float32)
        inverse = hax.rsqrt(hax.mean(hax.square(wide), axis) + self.config.norm_eps)
        return (wide * inverse).astype(x.dtype) * scale

    def _rotation(self, positions: Int[Array, "seq token"]) -> Rotation:
        rope = self.config.rope
        angles = positions.astype(jnp.float32)[:, :, None] * rope.inverse_frequencies()[None, None, :]
        cosine, sine = jnp.cos(angles) * rope.attention_factor, jnp.sin(angles) * rope.attention_factor
        return Rotation(cosine.astype(self.dtype), sine.astype(self.dtype))

    def _attention(
        self,
        named: dict[str, NamedArray],
        hidden: NamedArray,
        cache: LayerCache,
        paging: Paging,
        rotation: tuple[NamedArray, NamedArray],
        *,
        layer: int,
    ) -> tuple[NamedArray, LayerCache]:
        config, prefix = self.config, f"layers.{layer}."
        x = self._rms_norm(hidden, named[prefix + "attention_norm"], "embed")
        with jax.named_scope("qkv"):
            qkv = self._qkv(x, named, prefix + "qkv")
            if config.has_qkv_bias:
                qkv = qkv + named[prefix + "qkv_bias"]
        query = qkv.slice("qkv_group", "group", start=0, length=config.group_size)
        key, value = qkv["qkv_group", config.group_size], qkv["qkv_group", config.group_size + 1]
        if config.has_qk_norm:
            query = self._rms_norm(query, named[prefix + "query_norm"], "head_dim")
            key = self._rms_norm(key, named[prefix + "key_norm"], "head_dim")
        with jax.named_scope("rope"):
            query, key = _rotate(query, *rotation), _rotate(key, *rotation)
        key, value = _with_nans_in_keys(key, value)
        attended, cache = self._kernel.attend(
            query.rearrange((Seq, Token, "kv_head", "group", "head_dim")).array,
            key.rearrange((Seq, Token, "kv_head", "head_dim")).array,
            value.rearrange((Seq, Token, "kv_head", "head_dim")).array,
            cache,
            paging,
            scoring=Scoring(config.head_dim**-0.5, config.sliding_window(layer)),
        )
        merged = hax.named(attended.reshape(*attended.shape[:2], -1), (Seq, Token, "heads"))
        with jax.named_scope("output"):
            out = self._constrained(self._dot(merged, named, prefix + "output", ("heads",)))
        if config.has_output_bias:
            out = out + named[prefix + "output_bias"]
        return out, cache

    def _mlp(self, named: dict[str, NamedArray], hidden: NamedArray, *, layer: int) -> NamedArray:
        """Gate, up, down. Source: Shazeer 2020, arXiv:2002.05202 (SwiGLU)."""
        prefix = f"layers.{layer}."
        x = self._rms_norm(hidden, named[prefix + "mlp_norm"], "embed")
        with jax.named_scope("mlp"):
            gate_up = self._dot(x, named, prefix + "gate_up", ("embed",))
            if self.config.has_mlp_bias:
                gate_up = gate_up + named[prefix + "gate_up_bias"]
            active = hnn.silu(gate_up["gate_up", 0]) * gate_up["gate_up", 1]
            down = self._constrained(self._dot(active, named, prefix + "down", ("mlp",)))
        return down + named[prefix + "down_bias"] if self.config.has_mlp_bias else down


def _with_nans_in_keys(key: NamedArray, value: NamedArray) -> tuple[NamedArray, NamedArray]:
    """Move NaNs from values to keys, where masking removes them.

    Masking replaces a position's score, whatever its key. But a masked value is multiplied by zero, and zero times NaN
    is NaN: without this, a NaN in a value would also reach the next sequence that gets its page.
    """
    is_finite = hax.isfinite(value)
    return hax.where(hax.all(is_finite, "head_dim"), key, jnp.nan), hax.where(is_finite, value, 0)


def _rotate(x: NamedArray, cosine: NamedArray, sine: NamedArray) -> NamedArray:
    """Rotate each pair (i, i + head_dim / 2) by its angle, as Hugging Face pairs them."""
    half = x.resolve_axis("head_dim").size // 2
    first = x.slice("head_dim", Half, start=0, length=half)
    second = x.slice("head_dim", Half, start=half, length=half)
    rotated = (first * cosine - second * sine, second * cosine + first * sine)
    return hax.concatenate("head_dim", [part.rename({Half: "head_dim"}) for part in rotated])
