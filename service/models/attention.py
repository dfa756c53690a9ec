"""The attention of a layer, over named arrays: queries, keys and values, their norms and rotation, and the output.

Query, key and value weights are one array, concatenated *within* each KV head, so that splitting that axis over devices
splits all three alike.
"""

from dataclasses import dataclass

import haliax as hax
import jax
import jax.numpy as jnp
from haliax import NamedArray
from jaxtyping import Array, Float, Int

from service.kernels.attention import AttentionKernel, LayerCache, MemoryKernel, Scoring
from service.kernels.paging import Paging, Regions
from service.kernels.reference import wide_context, write_tokens
from service.kernels.sharded import ShardedAttention
from service.models.attended import gated_heads, without_own_value
from service.models.description import Attention
from service.models.multiply import Multiply, NamedWeights
from service.models.norm import normalized
from service.models.quantization import scale_name, zero_name
from service.models.recurrent import LayerConvolutions
from service.models.rotation import Rotation

ROTARY = "half_rotary_dim"


@dataclass(frozen=True)
class StepAttention:
    """What the attention of every layer of a step shares."""

    multiply: Multiply
    kernel: AttentionKernel | ShardedAttention
    regions: Regions

    def __call__(
        self,
        x: NamedArray,
        description: Attention,
        weights: NamedWeights,
        cache: LayerCache,
        rotation: Rotation | None,
        *,
        convolve: LayerConvolutions | None = None,
    ) -> tuple[NamedArray, LayerCache]:
        """Attend from each token to those up to its own; the returned cache holds the tokens' keys and values.

        One that is shared holds them already, and stays as it is.

        Args:
            x: the tokens.
            description: the attention.
            weights: those of the layer.
            cache: the pages of the layer's keys and values.
            rotation: the angles of the tokens; None for none.
            convolve: the convolutions of the layer; None of one without any.
        """
        with jax.named_scope("qkv"):
            qkv = self._qkv(x, weights)
            if description.has_bias:
                qkv = qkv + _bias(description, weights)
        group, rows, gates = description.group_size, description.query_rows, None
        query = qkv.slice("qkv_group", "group", start=0, length=rows)
        if description.has_wide_gates:  # each head's query, then its gate
            pairs = query.unflatten_axis("group", {"group": group, "gate": 2})
            query, gates = pairs["gate", 0], pairs["gate", 1]
        own_keys = None if description.shares_cache else qkv["qkv_group", rows]
        if own_keys is not None and convolve is not None:
            own_keys = convolve("key", own_keys.rearrange(("token", "kv_head", "head_dim")))
        value = qkv["qkv_group", rows + 1] if description.has_values and own_keys is not None else own_keys
        query, key = self._normalized(query, own_keys, description, weights)
        if rotation is not None:
            with jax.named_scope("rope"):
                is_adjacent = description.rotation is not None and description.rotation.is_adjacent
                query = _rotated(query, rotation, is_adjacent)
                key = None if key is None else _rotated(key, rotation, is_adjacent)
                if rotation.temperature is not None:
                    query = query * hax.named(rotation.temperature, "token")
        pair: tuple[NamedArray, ...] = ()
        if key is not None and value is not None:
            value = normalized(value, description.value_norm, weights, "value_norm", "head_dim")
            pair = _with_nans_in_keys(key, value)
        heads = (
            query.rearrange(("token", "kv_head", "group", "head_dim")).array,
            *(part.rearrange(("token", "kv_head", "head_dim")).array for part in pair),
        )
        scoring = Scoring(description.scale, description.window, description.soft_cap)
        sinks = weights["sinks"].array if description.has_sinks else None

        def attend(own: tuple[Array, ...], cache: LayerCache, paging: Paging) -> tuple[Array, LayerCache]:
            query, key, value = own if pair else (*own, None, None)
            return self.kernel.attend(query, key, value, cache, paging, scoring=scoring, sinks=sinks)

        attended, cache = self.regions.attend(attend, heads, cache)
        if description.is_exclusive:
            attended = without_own_value(attended, heads[2])
        if description.has_gates:
            attended = gated_heads(
                attended, x.rearrange(("token", "embed")).array, weights["head_gates"].array, description.most_gate
            )
        if gates is not None:
            by_element = gates.rearrange(("token", "kv_head", "group", "head_dim")).array
            attended = attended * jax.nn.sigmoid(by_element.astype(jnp.float32)).astype(attended.dtype)
        merged = hax.named(attended.reshape(len(attended), -1), ("token", "heads"))
        with jax.named_scope("output"):
            out = self.multiply.constrained(self.multiply(merged, weights, "output", ("heads",)))
        if description.has_output_bias:
            out = out + weights["output_bias"]
        return out, cache

    def _normalized(
        self, query: NamedArray, key: NamedArray | None, description: Attention, weights: NamedWeights
    ) -> tuple[NamedArray, NamedArray | None]:
        """Normalize queries and keys, each head by itself or all together."""
        norm = description.qk_norm
        if key is None:
            assert not description.is_qk_norm_whole, "no family that shares keys has norms over all heads"
            return normalized(query, norm, weights, "query_norm", "head_dim"), None
        if not description.is_qk_norm_whole:
            query = normalized(query, norm, weights, "query_norm", "head_dim")
            return query, normalized(key, norm, weights, "key_norm", "head_dim")
        query = normalized(query, norm, weights, "query_norm", ("kv_head", "group", "head_dim"))
        # All copies of a key-value head are alike, so they do not change a mean.
        of_key = {name: weights[name]["group", 0] for name in ("key_norm", "key_norm_bias") if name in weights}
        return query, normalized(key, norm, of_key, "key_norm", ("kv_head", "head_dim"))

    def _qkv(self, x: NamedArray, weights: NamedWeights) -> NamedArray:
        """Multiply by the weights of queries, keys and values."""
        if not isinstance(self.kernel, ShardedAttention):
            return self.multiply(x, weights, "qkv", ("embed",))
        # As one matrix, and sliced after the barrier: else XLA:TPU lays a device's part of the weights out anew in each
        # step, in the order of the slices.
        heads = weights["qkv"].axes[:-1]
        matrices = {
            key: weights[key].flatten_axes(heads, "qkv")
            for key in ("qkv", scale_name("qkv"), zero_name("qkv"))
            if key in weights
        }
        out = self.multiply(x, matrices, "qkv", ("embed",))
        out = hax.named(jax.lax.optimization_barrier(out.array), out.axes).unflatten_axis("qkv", heads)
        return self.multiply.adapted(out, x, weights, "qkv", ("embed",))


@dataclass(frozen=True)
class MemoryAttention:
    """Attention to the output of an encoder, whose keys and values lie in pages of the cache."""

    multiply: Multiply
    kernel: MemoryKernel | ShardedAttention
    memory: Regions

    def __call__(self, x: NamedArray, description: Attention, weights: NamedWeights, cache: LayerCache) -> NamedArray:
        """Attend from each token to all of its sequence's memory."""
        heads = self._query(x, description, weights)

        def attend(own: tuple[Array, ...], cache: LayerCache, memory: Paging) -> tuple[Array, LayerCache]:
            return self.kernel.attend_memory(own[0], cache, memory, scale=description.scale), cache

        attended, _ = self.memory.attend(attend, (heads,), cache)
        merged = hax.named(attended.reshape(len(attended), -1), ("token", "heads"))
        out = self.multiply.constrained(self.multiply(merged, weights, "memory_output", ("heads",)))
        return out + weights["memory_output_bias"] if description.has_output_bias else out

    def scores(
        self,
        x: NamedArray,
        description: Attention,
        weights: NamedWeights,
        cache: LayerCache,
        heads: Int[Array, " head"],
    ) -> Float[Array, "head prompt_token position"]:
        """Return the scores of some heads of the tokens of prompts, before the softmax."""
        query = self._query(x, description, weights)
        rows, width = self.memory.prompts, self.memory.width(len(query))
        own = query[len(self.memory.decodes.start) :].reshape(len(rows.start), width, -1, query.shape[-1])[:, :, heads]
        keys, _ = wide_context(cache, rows.page_table, query.dtype)
        of_heads = keys[:, heads // description.group_size]
        scores = jnp.einsum("rthd,rhcd->hrtc", own, of_heads, preferred_element_type=jnp.float32) * description.scale
        return scores.reshape(len(heads), len(rows.start) * width, -1)

    def _query(
        self, x: NamedArray, description: Attention, weights: NamedWeights
    ) -> Float[Array, "token kv_head group head_dim"]:
        query = self.multiply(x, weights, "memory_query", ("embed",))
        if description.has_bias:
            query = query + weights["memory_query_bias"]
        return query.rearrange(("token", "kv_head", "group", "head_dim")).array

    def remember(
        self, output: NamedArray, description: Attention, weights: NamedWeights, cache: LayerCache
    ) -> LayerCache:
        """Write the keys and values of an encoder's output into pages; the returned cache holds them."""
        pair = self.multiply(output, weights, "memory_key_value", ("embed",))
        key, value = pair["key_value", 0], pair["key_value", 1]
        if description.has_bias:
            value = value + weights["memory_value_bias"]
        key, value = _with_nans_in_keys(key, value)
        keys, values = (part.rearrange(("token", "kv_head", "head_dim")).array[None] for part in (key, value))
        return write_tokens(cache, keys, values, self.memory.prompts)


def _bias(description: Attention, weights: NamedWeights) -> NamedArray:
    """Return the bias of queries, keys and values; that of keys may be zero and not stored."""
    bias = weights["qkv_bias"]
    if description.has_key_bias:
        return bias
    rows = description.query_rows
    queries = bias.slice("qkv_group", start=0, length=rows)
    values = bias.slice("qkv_group", start=rows, length=1)
    return hax.concatenate("qkv_group", [queries, hax.zeros_like(values), values])


def _with_nans_in_keys(key: NamedArray, value: NamedArray) -> tuple[NamedArray, NamedArray]:
    """Move NaNs from values to keys, where masking removes them.

    Masking replaces a position's score, whatever its key. But a masked value is multiplied by zero, and zero times NaN
    is NaN: without this, a NaN in a value would also reach the next sequence that gets its page.
    """
    is_finite = hax.isfinite(value)
    return hax.where(hax.all(is_finite, "head_dim"), key, jnp.nan), hax.where(is_finite, value, 0)


def _rotated(x: NamedArray, rotation: Rotation, is_adjacent: bool) -> NamedArray:
    """Rotate each pair of dimensions by its angle; leave the dimensions after the pairs.

    Args:
        x: queries or keys.
        rotation: the angles.
        is_adjacent: whether a pair is (2 i, 2 i + 1), and not (i, i + rotary_dim / 2) as Hugging Face pairs them.
    """
    cosine, sine = (hax.named(part, ("token", ROTARY)) for part in (rotation.cosine, rotation.sine))
    half, head_dim = cosine.resolve_axis(ROTARY).size, x.resolve_axis("head_dim").size
    if is_adjacent:
        pairs = x.slice("head_dim", start=0, length=2 * half).unflatten_axis("head_dim", {ROTARY: half, "pair": 2})
        first, second = pairs["pair", 0], pairs["pair", 1]
    else:
        first = x.slice("head_dim", ROTARY, start=0, length=half)
        second = x.slice("head_dim", ROTARY, start=half, length=half)
    rotated = (first * cosine - second * sine, second * cosine + first * sine)
    if is_adjacent:
        parts = [hax.stack("pair", rotated).rearrange((..., ROTARY, "pair")).flatten_axes((ROTARY, "pair"), "head_dim")]
    else:
        parts = [part.rename({ROTARY: "head_dim"}) for part in rotated]
    if head_dim > 2 * half:
        parts.append(x.slice("head_dim", start=2 * half, length=head_dim - 2 * half))
    return hax.concatenate("head_dim", parts)
