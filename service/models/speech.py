"""The forward pass of Whisper's encoder: the features of one window of sound to the memory of a decoder.

It is traced in parts, as a decoder is: `begin`, some layers at a time, `end`.

Source: Radford et al. 2022, arXiv:2212.04356; transformers `models/whisper/modeling_whisper.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from jaxtyping import Array, Float, Float32

from service.kernels.both_ways import attend_both_ways
from service.kernels.products.linear import PLAIN, Products, linear
from service.models.activations import activate
from service.models.description import ENCODER_PREFIX, Activation, Attention, SpeechEncoder
from service.models.feed_forward import feed_forward
from service.models.interface import LayerGroup, Weights
from service.models.layer_groups import layer_groups
from service.models.multiply import Multiply, NamedWeights
from service.models.norm import normalized
from service.models.weight_spec import WeightSpec

TAPS = 3  # of both convolutions
LONGEST_WAVELENGTH = 10_000  # of the sinusoids, divided by 2 pi


@dataclass(frozen=True)
class SpeechEncoding:
    """An encoder of one description, in one dtype."""

    config: SpeechEncoder
    specs: tuple[WeightSpec, ...]  # of the whole model
    dtype: np.dtype
    products: Products = PLAIN

    @property
    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """The layers in order, cut into groups that are compiled separately."""
        return layer_groups(self.config.layers, self.specs, prefix=ENCODER_PREFIX)

    @property
    def features_shape(self) -> tuple[int, int]:
        """Frames and features of a window."""
        return self.config.num_frames, self.config.num_mels

    def begin(self, weights: Weights, features: Float[Array, "frame mel"]) -> Float[Array, "position hidden"]:
        """Convolve the features of a window, and add the positions."""
        x = features.astype(self.dtype)
        for name, stride in (("conv1", 1), ("conv2", 2)):
            with jax.named_scope(name):
                x = (
                    self._convolved(x, weights[f"{ENCODER_PREFIX}{name}"], stride)
                    + weights[f"{ENCODER_PREFIX}{name}_bias"][None]
                )
                x = activate(x, Activation.GELU)
        return x + sinusoids(self.config.num_positions, self.config.hidden_size).astype(self.dtype)

    def run_layer_group(
        self, group: LayerGroup, weights: Sequence[jax.Array], hidden: Float[Array, "position hidden"]
    ) -> Float[Array, "position hidden"]:
        """Run a group's layers."""
        named, x = self._named(dict(zip(group.weights, weights, strict=True))), hax.named(hidden, ("token", "embed"))
        for number in group.layers:
            layer, prefix = self.config.layers[number], f"{ENCODER_PREFIX}layers.{number}."
            own = {name.removeprefix(prefix): array for name, array in named.items() if name.startswith(prefix)}
            x = x + self._attended(normalized(x, layer.attention_norm, own, "attention_norm"), layer.attention, own)
            inside = normalized(x, layer.mlp_norm, own, "mlp_norm")
            x = x + feed_forward(inside, layer.feed_forward, own, self._multiply)
        return x.rearrange(("token", "embed")).array

    def end(self, weights: Weights, hidden: Float[Array, "position hidden"]) -> Float[Array, "position hidden"]:
        """Normalize the output."""
        names = [spec.name for spec in self.specs if spec.name.startswith(f"{ENCODER_PREFIX}final_norm")]
        named = self._named({name: weights[name] for name in names})
        own = {name.removeprefix(ENCODER_PREFIX): array for name, array in named.items()}
        return normalized(hax.named(hidden, ("token", "embed")), self.config.final_norm, own, "final_norm").array

    @cached_property
    def _multiply(self) -> Multiply:
        return Multiply(self.products)

    def _named(self, weights: Weights) -> dict[str, NamedArray]:
        axes = {spec.name: spec.axes for spec in self.specs}
        return {name: hax.named(array, axes[name]) for name, array in weights.items()}

    def _convolved(
        self, x: Float[Array, "frame channel"], weight: Float[Array, "embed channel tap"], stride: int
    ) -> Float[Array, "position embed"]:
        """Convolve as one product: of each position with the frames under it."""
        padded = jnp.pad(x, ((1, 1), (0, 0)))
        under = [padded[tap : tap + len(x) : stride] for tap in range(TAPS)]
        return linear(jnp.stack(under, axis=-1), weight, self.products, num_in_axes=2)

    def _attended(self, x: NamedArray, description: Attention, weights: NamedWeights) -> NamedArray:
        qkv = self._multiply(x, weights, "qkv", ("embed",)).rearrange(("token", "kv_head", "qkv_group", "head_dim"))
        # Keys have no bias.
        bias = weights["qkv_bias"].rearrange(("kv_head", "qkv_group", "head_dim")).array
        query, key, value = (qkv.array[:, :, part] for part in range(3))
        attended = attend_both_ways(query + bias[None, :, 0], key, value + bias[None, :, 1], scale=description.scale)
        merged = hax.named(attended.reshape(len(attended), -1), ("token", "heads"))
        return self._multiply(merged, weights, "output", ("heads",)) + weights["output_bias"]


def sinusoids(num_positions: int, width: int) -> Float32[np.ndarray, "position width"]:
    """Return the embeddings of positions: sines of falling frequencies, then cosines of the same.

    Source: https://github.com/openai/whisper/blob/main/whisper/model.py (sinusoids)
    """
    step = math.log(LONGEST_WAVELENGTH) / (width // 2 - 1)
    angles = np.arange(num_positions)[:, None] * np.exp(-step * np.arange(width // 2))[None, :]
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
