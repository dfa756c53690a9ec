"""The forward pass that BERT and its descendants share, over the packed tokens of several texts.

Weights are stored `[out, in]`, as in a checkpoint; query, key and value are one array. An encoder's arrays have two
axes or three, so they are plain: a start without a bundle compiles it without importing Haliax.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from service.kernels.products.linear import PLAIN, Products, linear
from service.kernels.segments import segment_attention
from service.models.activations import activate
from service.models.encoders.config import EncoderConfig
from service.models.encoders.packing import GroupInputs, PackedTexts, PackedTokens
from service.models.encoders.pooling import text_vectors
from service.models.encoders.weights import encoder_weight_specs
from service.models.interface import LayerGroup, Weights
from service.models.layer_groups import layer_groups

FLOAT32 = np.dtype(np.float32)
FARTHEST = 128  # tokens: from here on all distances have one bias; source: the same function as `_by_distance`


@dataclass(frozen=True)
class Encoder:
    """An encoder of one geometry, in one dtype."""

    config: EncoderConfig
    dtype: np.dtype = FLOAT32  # of weights and activations
    products: Products = PLAIN

    @property
    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """The layers in order, cut into groups that are compiled separately."""
        return layer_groups(self.config.layers, encoder_weight_specs(self.config))

    def embed(self, weights: Weights, tokens: PackedTokens) -> Float[Array, "token hidden"]:
        """Return the sum of the embeddings of tokens, positions and types, normalized."""
        tables = {
            "words": tokens.token_ids,
            "positions": rows_of_positions(tokens, self.config.first_position),
            "types": tokens.types,
        }
        with jax.named_scope("embed"):
            summed = sum(weights[name][index] for name, index in tables.items() if name in weights)
        return self._norm(weights, "embed_norm", jnp.asarray(summed))

    def run_layer_group(
        self, group: LayerGroup, weights: Sequence[jax.Array], inputs: GroupInputs
    ) -> Float[Array, "token hidden"]:
        """Run a group's layers."""
        hidden = jnp.asarray(inputs.hidden)
        named = dict(zip(group.weights, weights, strict=True))
        for layer in group.layers:
            prefix = f"layers.{layer}."
            attended = self._attention(named, prefix, hidden, inputs)
            hidden = self._norm(named, f"{prefix}attention_norm", hidden + attended)
            hidden = self._norm(named, f"{prefix}mlp_norm", hidden + self._mlp(named, prefix, hidden))
        return hidden

    def vectors(
        self, weights: Weights, hidden: Float[Array, "token hidden"], texts: PackedTexts
    ) -> Float[Array, "text vector"]:
        """Return each text's vector, in float32."""
        return text_vectors(weights, hidden, texts, self.config.vector)

    def _attention(
        self, named: Weights, prefix: str, hidden: Float[Array, "token hidden"], inputs: GroupInputs
    ) -> Float[Array, "token hidden"]:
        config = self.config
        with jax.named_scope("qkv"):
            qkv = self._dot(hidden, named[f"{prefix}qkv"], 1) + named[f"{prefix}qkv_bias"].reshape(1, -1)
        query, key, value = jnp.split(qkv, 3, axis=-1)
        heads = (len(hidden), config.num_heads, config.head_dim)
        with jax.named_scope("attention"):
            query, key, value = (part.reshape(heads) for part in (query, key, value))
            segments, window = jnp.asarray(inputs.segments), jnp.asarray(inputs.window)
            bias = named.get(f"{prefix}position_bias")
            by_distance = None if bias is None else _by_distance(bias, len(hidden))
            scale = config.head_dim**-0.5
            attended = segment_attention(query, key, value, segments, window, scale=scale, by_distance=by_distance)
        with jax.named_scope("output"):
            return self._dot(attended.reshape(hidden.shape), named[f"{prefix}output"], 2) + named[
                f"{prefix}output_bias"
            ].reshape(1, -1)

    def _mlp(self, named: Weights, prefix: str, hidden: Float[Array, "token hidden"]) -> Float[Array, "token hidden"]:
        with jax.named_scope("mlp"):
            up = self._dot(hidden, named[f"{prefix}up"], 1) + named[f"{prefix}up_bias"][None]
            return self._dot(activate(up, self.config.activation), named[f"{prefix}down"], 1) + named[
                f"{prefix}down_bias"
            ].reshape(1, -1)

    def _dot(self, x: Float[Array, "token in"], weight: jax.Array, num_in_axes: int) -> Float[Array, "token out"]:
        num_in = math.prod(weight.shape[-num_in_axes:])
        return linear(x, weight.reshape(-1, num_in), self.products)

    def _norm(self, named: Weights, name: str, x: Float[Array, "token hidden"]) -> Float[Array, "token hidden"]:
        """Normalize mean and variance, in float32. Source: Ba et al. 2016, arXiv:1607.06450."""
        wide = x.astype(jnp.float32)
        centered = wide - wide.mean(-1, keepdims=True)
        inverse = jax.lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + self.config.norm_eps)
        scale, bias = named[name], named[f"{name}_bias"]
        return (centered * inverse).astype(x.dtype) * scale[None] + bias[None]


def rows_of_positions(tokens: PackedTokens, first: int) -> Int[Array, "token"]:
    """Return each token's row in the table of positions, of which those before `first` are none of a text's.

    Where the padding token has the last of those rows, a text that has this token gives it that row and counts on
    behind it. Source: transformers `models/xlm_roberta/modeling_xlm_roberta.py` (create_position_ids_from_input_ids).
    """
    positions = jnp.asarray(tokens.positions)
    if first == 0:
        return positions
    is_padding = (jnp.asarray(tokens.token_ids) == first - 1).astype(jnp.int32)
    counts = jnp.cumsum(is_padding)
    begin = jnp.arange(len(positions), dtype=jnp.int32) - positions
    before = counts - counts[begin] + is_padding[begin]
    return jnp.where(is_padding == 1, first - 1, positions - before + first)


def _by_distance(bias: Float[Array, "bucket head"], num_tokens: int) -> Float[Array, "distance head"]:
    """Return the bias of each distance of a key from a query, from the farthest before it to the farthest behind it.

    Source: Raffel et al. 2019, arXiv:1910.10683, section 2.1; transformers `models/mpnet/modeling_mpnet.py`
    (relative_position_bucket). Half of the buckets are for keys behind the query, half of those for one distance each.
    """
    distances = np.arange(1 - num_tokens, num_tokens)
    per_side, ahead = len(bias) // 2, np.abs(distances)
    exact = per_side // 2
    share = np.log(np.maximum(ahead, 1).astype(np.float32) / np.float32(exact)) / np.float32(math.log(FARTHEST / exact))
    far = np.minimum(exact + (share * (per_side - exact)).astype(np.int32), per_side - 1)
    buckets = np.where(ahead < exact, ahead, far) + (distances > 0) * per_side
    return bias[buckets]
