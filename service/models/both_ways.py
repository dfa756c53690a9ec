"""The layers of an encoder that looks both ways, which those of sound and of pictures share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from jaxtyping import Array, Float, Int, Int32

from service.kernels.both_ways import attend_both_ways
from service.kernels.products.linear import PLAIN, Products
from service.models.description import ENCODER_PREFIX, Attention, ImageEncoder, Norm, PatchEncoder, SpeechEncoder
from service.models.feed_forward import feed_forward
from service.models.interface import LayerGroup, Weights
from service.models.layer_groups import encoder_groups
from service.models.limited import LimitedMultiply
from service.models.multiply import Multiply, NamedWeights
from service.models.norm import normalized
from service.models.weight_spec import WeightSpec


class Places(NamedTuple):
    """Where the positions of an encoder are, if that depends on what is encoded."""

    cosine: Float[Array, "position half_head_dim"]
    sine: Float[Array, "position half_head_dim"]
    num_used: Int[Array, ""]  # positions that are there; the others are padding
    num_parts: int = 1  # of a head, each of which has pairs of its own

    def turned(self, heads: Float[Array, "position head head_dim"]) -> Float[Array, "position head head_dim"]:
        """Rotate queries or keys by their positions."""
        if self.num_parts == 1:
            first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
        else:
            pairs = heads.astype(jnp.float32).reshape(*heads.shape[:2], self.num_parts, 2, -1)
            # Scores do not depend on the order of the dimensions, if that of queries and keys is one.
            first, second = (pairs[..., half, :].reshape(*heads.shape[:2], -1) for half in range(2))
        cosine, sine = self.cosine[:, None], self.sine[:, None]
        turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
        return turned.astype(heads.dtype)


@dataclass(frozen=True)
class BothWays[Description: (SpeechEncoder, ImageEncoder, PatchEncoder)]:
    """An encoder of one description, in one dtype, between its beginning and its end."""

    config: Description
    specs: tuple[WeightSpec, ...]  # of the whole model
    dtype: np.dtype
    products: Products = PLAIN

    @property
    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """The layers in order, cut into groups that are compiled separately."""
        return encoder_groups(self.config, self.specs)

    def _run_layers(
        self,
        group: LayerGroup,
        weights: Sequence[jax.Array],
        hidden: Float[Array, "position hidden"],
        places: Places | None = None,
    ) -> Float[Array, "position hidden"]:
        named, x = self._named(dict(zip(group.weights, weights, strict=True))), hax.named(hidden, ("token", "embed"))
        multiply = self._multiply if places is None else self._multiply_used(places.num_used)
        for number in group.layers:
            layer, prefix = self.config.layers[number], f"{ENCODER_PREFIX}layers.{number}."
            own = {name.removeprefix(prefix): array for name, array in named.items() if name.startswith(prefix)}
            assert layer.attention is not None, "the layers of an encoder keep no state"
            assert layer.feed_forward is not None, "the layers of an encoder have both branches"
            inside = normalized(x, layer.attention_norm, own, "attention_norm")
            attended = self._attended(inside, layer.attention, own, multiply, places)
            x = x + normalized(attended, layer.attention_post_norm, own, "attention_post_norm")
            inside = normalized(x, layer.mlp_norm, own, "mlp_norm")
            made = feed_forward(inside, layer.feed_forward, own, multiply)
            x = x + normalized(made, layer.mlp_post_norm, own, "mlp_post_norm")
        return x.rearrange(("token", "embed")).array

    def _normalized(
        self, norm: Norm, name: str, weights: Weights, hidden: Float[Array, "position hidden"]
    ) -> Float[Array, "position hidden"]:
        names = [spec.name for spec in self.specs if spec.name.startswith(f"{ENCODER_PREFIX}{name}")]
        named = self._named({name: weights[name] for name in names})
        own = {name.removeprefix(ENCODER_PREFIX): array for name, array in named.items()}
        return normalized(hax.named(hidden, ("token", "embed")), norm, own, name).array

    @cached_property
    def _multiply(self) -> Multiply:
        has_limits = isinstance(self.config, PatchEncoder) and self.config.has_limits
        return LimitedMultiply(self.products) if has_limits else Multiply(self.products)

    def _multiply_used(self, num_used: Int[Array, ""]) -> Multiply:
        """Return products for which the first rows suffice, by their number."""
        spans: Int32[Array, "1 2"] = jnp.stack([jnp.int32(0), num_used.astype(jnp.int32)])[None]
        return replace(self._multiply, spans=spans)

    def _named(self, weights: Weights) -> dict[str, NamedArray]:
        axes = {spec.name: spec.axes for spec in self.specs}
        return {name: hax.named(array, axes[name]) for name, array in weights.items()}

    def _attended(
        self,
        x: NamedArray,
        description: Attention,
        weights: NamedWeights,
        multiply: Multiply,
        places: Places | None,
    ) -> NamedArray:
        qkv = multiply(x, weights, "qkv", ("embed",)).rearrange(("token", "kv_head", "qkv_group", "head_dim"))
        bias = None
        if description.has_bias:
            bias = weights["qkv_bias"].rearrange(("kv_head", "qkv_group", "head_dim")).array
        query, key, value = (qkv.array[:, :, part] for part in range(3))
        if bias is not None:
            if description.has_key_bias:
                key = key + bias[None, :, 1]
            query, value = query + bias[None, :, 0], value + bias[None, :, -1]
        if description.qk_norm is not None:
            query, key, value = (
                normalized(hax.named(heads, ("token", "head", "head_dim")), norm, weights, name, "head_dim").array
                for heads, norm, name in (
                    (query, description.qk_norm, "query_norm"),
                    (key, description.qk_norm, "key_norm"),
                    (value, description.value_norm, "value_norm"),
                )
            )
        count = None
        if places is not None:
            query, key, count = places.turned(query), places.turned(key), places.num_used
        attended = attend_both_ways(query, key, value, scale=description.scale, count=count)
        merged = hax.named(attended.reshape(len(attended), -1), ("token", "heads"))
        out = multiply(merged, weights, "output", ("heads",))
        return out + weights["output_bias"] if description.has_output_bias else out
