"""Qwen3-VL's image preprocessing: an image is scaled to whole patches, within bounds of its area, and cut into them.

Source: transformers `models/qwen2_vl/image_processing_pil_qwen2_vl.py`
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from service.errors import MalformedCheckpoint
from service.media.pixels import CHANNELS, Filter, Picture, Resize, Shown, Size
from service.media.preprocessor import FILE, read_resampling

COARSE_ROWS = 256  # of an image of which little is asked


class Scaling(NamedTuple):
    """How one image is scaled."""

    resizes: tuple[Resize, ...]
    rows: int  # of tokens
    columns: int


@dataclass(frozen=True)
class Scaler:
    """Scales images to whole patches, and cuts them."""

    patch_size: int  # pixels of an edge
    merge_size: int  # patches of an edge of what is one token
    padded_rows: tuple[int, ...]  # tokens to which images are padded, smallest first
    fewest_pixels: int
    most_pixels: int
    resampling: Filter = Filter.BICUBIC

    @property
    def fewest_rows(self) -> int:
        """The tokens of the smallest image, at least."""
        return max(self.fewest_pixels // self._edge**2, 1)

    def plan(self, size: Size, *, is_coarse: bool = False) -> Scaling:
        """Return how an image of a size is scaled; `is_coarse` asks for few tokens."""
        most = min(self.most_pixels, COARSE_ROWS * self._edge**2) if is_coarse else self.most_pixels
        scaled = _scaled(size, self._edge, min(self.fewest_pixels, most), most)
        return Scaling((Resize(scaled),), scaled.height // self._edge, scaled.width // self._edge)

    def num_rows(self, scaling: Scaling) -> list[int]:
        """Return the tokens of each part of an image, which is one."""
        return [scaling.rows * scaling.columns]

    def shown(self, scaling: Scaling, pictures: Sequence[Picture]) -> list[Shown]:
        """Return the patches of an image; those that become one token follow each other."""
        [picture] = pictures
        merge, size = self.merge_size, self.patch_size
        cut = picture.reshape(scaling.rows, merge, size, scaling.columns, merge, size, CHANNELS)
        patches = cut.transpose(0, 3, 1, 4, 6, 2, 5).reshape(-1, CHANNELS * size**2)
        num_rows = scaling.rows * scaling.columns
        padded = np.zeros((merge**2 * next(n for n in self.padded_rows if n >= num_rows), patches.shape[1]), np.uint8)
        padded[: len(patches)] = patches
        grid = np.array([merge * scaling.rows, merge * scaling.columns], np.int32)
        return [Shown((padded, grid), num_rows, (scaling.rows, scaling.columns))]

    @property
    def _edge(self) -> int:
        return self.patch_size * self.merge_size


def read_scaler(
    uri: str, values: Mapping[str, Any], *, patch_size: int, merge_size: int, padded_rows: tuple[int, ...]
) -> Scaler:
    """Read a `preprocessor_config.json`.

    Args:
        uri: the checkpoint, for errors.
        values: the file's.
        patch_size: of the model's encoder, in pixels of an edge.
        merge_size: patches of an edge of what is one token.
        padded_rows: tokens to which images are padded; the largest bounds an image.

    Raises:
        MalformedCheckpoint: the file is missing, or asks for what is not done here.
    """
    resampling = read_resampling(uri, values, Filter.BICUBIC)
    for name, expected in (("patch_size", patch_size), ("merge_size", merge_size)):
        if values.get(name, expected) != expected:
            raise MalformedCheckpoint(uri, FILE, f"{name} = {values[name]!r} is not that of config.json, {expected}")
    edge, bounds = patch_size * merge_size, values.get("size") or {}
    fewest = values.get("min_pixels") or bounds.get("shortest_edge", 64 * edge**2)
    most = values.get("max_pixels") or bounds.get("longest_edge", 16384 * edge**2)
    if type(fewest) is not int or type(most) is not int or not 0 < fewest <= most:
        raise MalformedCheckpoint(uri, FILE, f"size = {bounds!r} has no bounds of an area")
    most = min(most, padded_rows[-1] * edge**2)
    return Scaler(patch_size, merge_size, padded_rows, min(fewest, most), most, resampling)


def _scaled(size: Size, edge: int, fewest_pixels: int, most_pixels: int) -> Size:
    width, height = round(size.width / edge) * edge, round(size.height / edge) * edge
    if width * height > most_pixels:
        shrunk = math.sqrt(size.width * size.height / most_pixels)
        return Size(
            max(edge, math.floor(size.width / shrunk / edge) * edge),
            max(edge, math.floor(size.height / shrunk / edge) * edge),
        )
    if width * height < fewest_pixels:
        grown = math.sqrt(fewest_pixels / (size.width * size.height))
        return Size(
            math.ceil(size.width * grown / edge) * edge,
            math.ceil(size.height * grown / edge) * edge,
        )
    return Size(width, height)
