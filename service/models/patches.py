"""The forward pass of the encoder of pictures of any shape: patches to rows, and to what the decoder's layers add.

It is traced in parts, as a decoder is: `begin`, some layers at a time, `end`.

Source: Bai et al. 2025, arXiv:2511.21631; transformers `models/qwen3_vl/modeling_qwen3_vl.py`; Agrawal et al. 2024,
arXiv:2410.07073; transformers `models/pixtral/modeling_pixtral.py`, `models/mistral3/modeling_mistral3.py`,
`models/gemma4/modeling_gemma4.py` (Gemma4VisionModel, Gemma4MultimodalEmbedder).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from jaxtyping import Array, Float, Int, UInt8

from service.kernels.products.linear import linear
from service.models.activations import activate
from service.models.both_ways import BothWays, Places
from service.models.description import ENCODER_PREFIX, PatchEncoder, PatchTurns, Pooler
from service.models.interface import LayerGroup, Weights
from service.models.multiply import NamedWeights
from service.models.norm import normalized
from service.models.vision import scaled_pixels

ROWS, TAP = f"{ENCODER_PREFIX}rows.", "tap."


class PictureState(NamedTuple):
    """A picture between two parts of its encoding."""

    hidden: Float[Array, "patch hidden"]
    grid: Int[Array, "2"]  # patches of a column and of a row
    taps: Float[Array, "tap row embed"]  # the last ones, as far as they were made


@dataclass(frozen=True)
class PatchEncoding(BothWays[PatchEncoder]):
    """An encoder of one description, in one dtype, for pictures that are padded to one number of rows."""

    num_rows: int = 0
    output_size: int = 0  # of a row

    @property
    def features(self) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
        """The pixels of patches, [patch, channel * row * column], and how many are in a column and a row."""
        num_patches = self.num_rows * self.config.merge_size**2
        pixels = jax.ShapeDtypeStruct((num_patches, 3 * self.config.patch_size**2), np.uint8)
        return pixels, jax.ShapeDtypeStruct((2,), np.int32)

    def begin(self, weights: Weights, features: tuple[UInt8[Array, "patch value"], Int[Array, "2"]]) -> PictureState:
        """Project the pixels of each patch, and add its position, which lies between learned ones."""
        values, grid = features
        scaled = scaled_pixels(values, *map(self._of_values, (self.config.pixel_mean, self.config.pixel_deviation)))
        weight, pixels = weights[f"{ENCODER_PREFIX}patches"], scaled.astype(self.dtype)
        if self.config.num_frames:
            weight = jnp.sum(weight, axis=2)  # a picture is every frame of itself
        if self.config.has_channels_last:
            weight = weight.transpose(0, 3, 1, 2)
        patches = linear(pixels, weight.reshape(self.config.hidden_size, -1), self.products)
        if self.config.has_patch_bias:
            patches = patches + weights[f"{ENCODER_PREFIX}patches_bias"][None]
        positions = None
        if self.config.num_positions:
            positions = self._positions(weights[f"{ENCODER_PREFIX}positions"], grid).astype(self.dtype)
        taps = jnp.zeros((len(self.config.taps), self.num_rows, self.output_size), self.dtype)
        patches = patches if positions is None else patches + positions
        if self.config.first_norm is not None:
            patches = self._normalized(self.config.first_norm, "first_norm", weights, patches)
        return PictureState(patches, grid, taps)

    def run_layer_group(self, group: LayerGroup, weights: Sequence[jax.Array], hidden: PictureState) -> PictureState:
        """Run a group's layers, and make rows after the last one if it has a tap."""
        state = hidden
        x = self._run_layers(group, weights, state.hidden, self._places(state.grid))
        last, taps = group.layers[-1], state.taps
        if last in self.config.taps:
            prefix = f"{ENCODER_PREFIX}layers.{last}.{TAP}"
            named = self._named(dict(zip(group.weights, weights, strict=True)))
            own = {name.removeprefix(prefix): array for name, array in named.items() if name.startswith(prefix)}
            taps = jnp.concatenate([taps[1:], self._rows(x, state.grid, own, is_norm_whole=True)[None]])
        return PictureState(x, state.grid, taps)

    def end(self, weights: Weights, hidden: PictureState) -> Float[Array, "row level embed"]:
        """Return the rows, and after each what the decoder's first layers add."""
        named = self._named({name: array for name, array in weights.items() if name.startswith(ROWS)})
        own = {name.removeprefix(ROWS): array for name, array in named.items()}
        rows = self._rows(hidden.hidden, hidden.grid, own, is_norm_whole=False)
        return jnp.concatenate([rows[:, None], hidden.taps.swapaxes(0, 1)], axis=1)

    def _rows(
        self, x: Float[Array, "patch hidden"], grid: Int[Array, "2"], weights: NamedWeights, *, is_norm_whole: bool
    ) -> Float[Array, "row embed"]:
        """Merge patches that are neighbours, and project them."""
        rows, multiply = self.config.rows, self._multiply_used(grid[0] * grid[1] // self.config.merge_size**2)
        num_merged, hidden_size = self.config.merge_size**2, self.config.hidden_size
        if isinstance(rows, Pooler):
            pooled = _pooled(x.reshape(-1, num_merged, hidden_size), weights)
            return multiply(normalized(pooled, rows.norm, weights, "norm"), weights, "projection", ("embed",)).array
        size = num_merged * hidden_size if is_norm_whole else hidden_size
        normal = normalized(hax.named(x.reshape(-1, size), ("token", "embed")), rows.norm, weights, "norm").array
        if rows.first is None:
            square = hax.named(normal.reshape(-1, num_merged * hidden_size), ("token", "merged"))
        else:
            places = hax.named(normal.reshape(-1, num_merged, hidden_size), ("token", "place", "embed"))
            square = multiply(places, weights, "first", ("embed", "place"))
        inner = multiply(square, weights, "up", ("merged",))
        inner = inner + weights["up_bias"] if rows.has_bias else inner
        active = hax.named(activate(inner.rearrange(("token", "inner")).array, rows.activation), ("token", "inner"))
        row = multiply(active, weights, "down", ("inner",))
        return (row + weights["down_bias"] if rows.has_bias else row).rearrange(("token", "row")).array

    def _of_values(self, by_channel: tuple[float, float, float]) -> float | Float[np.ndarray, "1 value"]:
        """Return the number of each channel for each value of a patch; one number if they are equal."""
        if len(set(by_channel)) == 1:
            return by_channel[0]
        return np.repeat(np.array(by_channel, np.float32), self.config.patch_size**2)[None]

    def _row_and_column(self, grid: Int[Array, "2"]) -> tuple[Int[Array, " patch"], Int[Array, " patch"]]:
        """Return the place of each patch; those that are merged follow each other."""
        merge = self.config.merge_size
        number = jnp.arange(self.num_rows * merge**2, dtype=jnp.int32)
        square, inside = number // merge**2, number % merge**2
        squares = jnp.maximum(grid[1] // merge, 1)
        return square // squares * merge + inside // merge, square % squares * merge + inside % merge

    def _places(self, grid: Int[Array, "2"]) -> Places:
        """Return the rotation of each patch: of a half of each head's pairs by its row, of the other by its column."""
        attention = self.config.layers[0].attention
        assert attention is not None, "the layers of an encoder keep no state"
        half = attention.head_dim // 2
        if self.config.turns is PatchTurns.ALTERNATING:
            whole = np.arange(half, dtype=np.float32) / half
            exponents = [whole[::2], whole[1::2]]
        else:
            exponents = [np.arange(0, half, 2, dtype=np.float32) / half] * 2
        angles = [
            place.astype(jnp.float32)[:, None] * (1.0 / self.config.theta**own).astype(np.float32)[None]
            for place, own in zip(self._row_and_column(grid), exponents, strict=True)
        ]
        are_apart = self.config.turns is PatchTurns.APART
        angle = jnp.concatenate(angles[::-1] if are_apart else angles, axis=1)
        return Places(jnp.cos(angle), jnp.sin(angle), grid[0] * grid[1], 2 if are_apart else 1)

    def _positions(
        self, learned: Float[Array, "position hidden"], grid: Int[Array, "2"]
    ) -> Float[Array, "patch hidden"]:
        """Interpolate the learned positions at those of the patches, or add those of their columns and rows."""
        side = self.config.num_positions
        if self.config.has_position_tables:
            row, column = self._row_and_column(grid)
            return learned[column] + learned[side + row]
        total: Float[Array, "patch hidden"] | None = None
        axes = []
        for place, count in zip(self._row_and_column(grid), (grid[0], grid[1]), strict=True):
            at = place.astype(jnp.float32) * ((side - 1) / jnp.maximum(count - 1, 1).astype(jnp.float32))
            at = jnp.clip(at, 0, side - 1)
            low, share = jnp.floor(at).astype(jnp.int32), at - jnp.floor(at)
            axes.append(((low, 1 - share), (jnp.minimum(low + 1, side - 1), share)))
        for row, of_row in axes[0]:
            for column, of_column in axes[1]:
                part = learned[row * side + column].astype(jnp.float32) * (of_row * of_column)[:, None]
                total = part if total is None else total + part
        assert total is not None
        return total


def _pooled(patches: Float[Array, "row place hidden"], weights: NamedWeights) -> NamedArray:
    """Return the mean of the patches of each square, scaled, and as large as the model's usually are."""
    mean = jnp.mean(patches.astype(jnp.float32), axis=1).astype(patches.dtype)
    scaled = hax.named(mean.astype(jnp.float32) * patches.shape[-1] ** 0.5, ("token", "embed"))
    if "standard_bias" in weights:
        scaled = (scaled - weights["standard_bias"].astype(jnp.float32)) * weights["standard_scale"].astype(jnp.float32)
    return scaled.astype(patches.dtype)
