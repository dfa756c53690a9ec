"""The forward pass of encoders with rotary positions, over the packed tokens of several texts.

Source: transformers `models/llama/modeling_llama.py`, `models/gemma3/modeling_gemma3.py` (four norms a layer, the scale
of embeddings), `models/modernbert/modeling_modernbert.py` (no norm before the first attention).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from service.kernels.products.linear import PLAIN, Products, linear
from service.kernels.segments import segment_attention
from service.models.activations import activate
from service.models.description import NormKind
from service.models.encoders.packing import GroupInputs, PackedTexts, PackedTokens
from service.models.encoders.pooling import text_vectors
from service.models.encoders.rotary.config import RotaryConfig
from service.models.encoders.rotary.weights import rotary_weight_specs
from service.models.interface import LayerGroup, Weights
from service.models.layer_groups import layer_groups
from service.models.rope import RopeConfig
from service.models.weight_spec import FLOAT32


@dataclass(frozen=True)
class RotaryEncoder:
    """An encoder of one geometry, in one dtype."""

    config: RotaryConfig
    dtype: np.dtype = FLOAT32  # of weights and activations
    products: Products = PLAIN

    @property
    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """The layers in order, cut into groups that are compiled separately."""
        return layer_groups(self.config.layers, rotary_weight_specs(self.config, self.dtype))

    def embed(self, weights: Weights, tokens: PackedTokens) -> Float[Array, "token hidden"]:
        """Return the embeddings of tokens, scaled or normalized as the family does."""
        with jax.named_scope("embed"):
            hidden = weights["embed"][tokens.token_ids] * jnp.asarray(self.config.embed_scale, self.dtype)
        return self._norm(weights, "embed_norm", hidden)

    def run_layer_group(
        self, group: LayerGroup, weights: Sequence[jax.Array], inputs: GroupInputs
    ) -> Float[Array, "token hidden"]:
        """Run a group's layers."""
        named, hidden = dict(zip(group.weights, weights, strict=True)), jnp.asarray(inputs.hidden)
        for layer in group.layers:
            prefix = f"layers.{layer}."
            attended = self._attention(named, layer, self._norm(named, f"{prefix}attention_norm", hidden), inputs)
            hidden = hidden + self._norm(named, f"{prefix}attention_post_norm", attended)
            made = self._mlp(named, prefix, self._norm(named, f"{prefix}mlp_norm", hidden))
            hidden = hidden + self._norm(named, f"{prefix}mlp_post_norm", made)
        return hidden

    def vectors(
        self, weights: Weights, hidden: Float[Array, "token hidden"], texts: PackedTexts
    ) -> Float[Array, "text vector"]:
        """Return each text's vector, in float32."""
        return text_vectors(weights, self._norm(weights, "final_norm", hidden), texts, self.config.vector)

    def _attention(
        self, named: Weights, layer: int, hidden: Float[Array, "token hidden"], inputs: GroupInputs
    ) -> Float[Array, "token hidden"]:
        config, prefix = self.config, f"layers.{layer}."
        traits = config.layers[layer]
        with jax.named_scope("qkv"):
            weight = named[f"{prefix}qkv"]
            qkv = linear(hidden, weight.reshape(-1, config.hidden_size), self.products)
            qkv = qkv.reshape(len(hidden), *weight.shape[:2])
            if config.has_qkv_bias:
                qkv = qkv + named[f"{prefix}qkv_bias"][None]
        first_key, first_value = config.num_heads, config.num_heads + config.num_kv_heads
        query, key, value = qkv[:, :first_key], qkv[:, first_key:first_value], qkv[:, first_value:]
        positions = jnp.asarray(inputs.positions)
        query = _rotate(self._norm(named, f"{prefix}query_norm", query), positions, traits.rope)
        key = _rotate(self._norm(named, f"{prefix}key_norm", key), positions, traits.rope)
        with jax.named_scope("attention"):
            segments, window = jnp.asarray(inputs.segments), jnp.asarray(inputs.window)
            scale, sight = config.attention_scale, traits.sight
            attended = segment_attention(query, key, value, segments, window, scale=scale, sight=sight)
        with jax.named_scope("output"):
            return self._linear(named, f"{prefix}output", attended.reshape(len(hidden), -1))

    def _mlp(self, named: Weights, prefix: str, hidden: Float[Array, "token hidden"]) -> Float[Array, "token hidden"]:
        with jax.named_scope("mlp"):
            gate, up = jnp.split(self._linear(named, f"{prefix}gate_up", hidden), 2, axis=-1)
            return self._linear(named, f"{prefix}down", activate(gate, self.config.activation) * up)

    def _linear(self, named: Weights, name: str, x: Float[Array, "token in"]) -> Float[Array, "token out"]:
        """Multiply by a weight, and add its bias where the family has one."""
        made, bias = linear(x, named[name], self.products), named.get(f"{name}_bias")
        return made if bias is None else made + bias[None]

    def _norm(self, named: Weights, name: str, x: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
        """Normalize in float32; where the family has no such norm, return the argument."""
        if name not in named:
            return x
        wide = x.astype(jnp.float32)
        norm = self.config.norm
        if norm.kind is NormKind.LAYER:
            wide = wide - wide.mean(-1, keepdims=True)
        normal = wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + norm.eps)
        scale = named[name].reshape((1,) * (x.ndim - 1) + (-1,))
        if norm.is_plus_one:
            return (normal * (1 + scale.astype(jnp.float32))).astype(x.dtype)
        return normal.astype(x.dtype) * scale


def _rotate(
    x: Float[Array, "token head head_dim"], positions: Int[Array, "token"], rope: RopeConfig
) -> Float[Array, "token head head_dim"]:
    """Rotate pairs of dimensions by the angles of a token's position; a pair lies half a head apart."""
    angles = positions.astype(jnp.float32)[:, None, None] * jnp.asarray(rope.inverse_frequencies())[None, None]
    cosine, sine = jnp.cos(angles) * rope.attention_factor, jnp.sin(angles) * rope.attention_factor
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([left * cosine - right * sine, right * cosine + left * sine], axis=-1).astype(x.dtype)
