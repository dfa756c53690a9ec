"""The forward pass of the encoder of square pictures: pixels to rows that take the places of tokens' embeddings.

It is traced in parts, as a decoder is: `begin`, some layers at a time, `end`.

Source: Zhai et al. 2023, arXiv:2303.15343; transformers `models/idefics3/modeling_idefics3.py`,
`models/gemma3/modeling_gemma3.py` (Gemma3MultiModalProjector).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32, UInt8

from service.kernels.products.linear import linear
from service.models.both_ways import BothWays
from service.models.description import ENCODER_PREFIX, ImageEncoder
from service.models.interface import LayerGroup, Weights

MEAN, DEVIATION = 0.5, 0.5  # of pixels between 0 and 1
LARGEST_COORDINATE = 1 - 1e-6


@dataclass(frozen=True)
class ImageEncoding(BothWays[ImageEncoder]):
    """An encoder of one description, in one dtype."""

    @property
    def features(self) -> jax.ShapeDtypeStruct:
        """The pixels of a picture, [row, column, channel]."""
        return jax.ShapeDtypeStruct((self.config.image_size, self.config.image_size, 3), np.uint8)

    def begin(self, weights: Weights, features: UInt8[Array, "row column channel"]) -> Float[Array, "patch hidden"]:
        """Project the pixels of each patch, and add the positions."""
        size, count = self.config.patch_size, self.config.num_patches
        pixels = scaled_pixels(features[: size * count, : size * count])
        by_patch = pixels.reshape(count, size, count, size, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, size, size)
        patches = linear(by_patch.astype(self.dtype), weights[f"{ENCODER_PREFIX}patches"], self.products, num_in_axes=3)
        positions = weights[f"{ENCODER_PREFIX}positions"]
        if self.config.has_rounded_positions:
            positions = positions[rounded_positions(count)]
        return patches + weights[f"{ENCODER_PREFIX}patches_bias"][None] + positions

    def run_layer_group(
        self, group: LayerGroup, weights: Sequence[jax.Array], hidden: Float[Array, "patch hidden"]
    ) -> Float[Array, "patch hidden"]:
        """Run a group's layers."""
        return self._run_layers(group, weights, hidden)

    def end(self, weights: Weights, hidden: Float[Array, "patch hidden"]) -> Float[Array, "row embed"]:
        """Normalize the output, and project each square of patches, or its mean, to a row."""
        count, merge = self.config.num_patches // self.config.merge_size, self.config.merge_size
        normalized = self._normalized(self.config.final_norm, "final_norm", weights, hidden)
        squares = normalized.reshape(count, merge, count, merge, -1).transpose(0, 2, 1, 3, 4)
        if self.config.mean_norm is None:
            of_rows = squares.reshape(count * count, -1)
        else:
            means = jnp.mean(squares, axis=(2, 3)).reshape(count * count, -1)
            of_rows = self._normalized(self.config.mean_norm, "mean_norm", weights, means)
        merged = hax.named(of_rows, ("token", "merged"))
        name = f"{ENCODER_PREFIX}projection"
        named = self._named({own: array for own, array in weights.items() if own.startswith(name)})
        return self._multiply(merged, named, name, ("merged",)).rearrange(("token", "row")).array


def scaled_pixels(
    values: UInt8[Array, "*place"],
    mean: float | Float[np.ndarray, "*#place"] = MEAN,
    deviation: float | Float[np.ndarray, "*#place"] = DEVIATION,
) -> Float[Array, "*place"]:
    """Return pixels as encoders take them: by default between -1 and 1."""
    return (values.astype(jnp.float32) * np.float32(1 / 255) - mean) / deviation


def rounded_positions(count: int) -> Int32[np.ndarray, " patch"]:
    """Return the learned position of each of `count` x `count` patches, as the reference rounds it.

    Source: transformers `modeling_idefics3.py` (Idefics3VisionEmbeddings.forward)
    """
    edges = (1 / count + np.arange(count - 1) / count).astype(np.float32)
    coordinates = np.arange(count, dtype=np.float32) * (np.float32(1) / np.float32(count))
    found = np.searchsorted(edges, np.minimum(coordinates, np.float32(LARGEST_COORDINATE)), side="right")
    return (found[:, None] * count + found[None, :]).reshape(-1).astype(np.int32)
