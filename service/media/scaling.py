"""Image preprocessing of models that see pictures of any shape: scaled to whole patches, and cut into them.

To which size is a rule of its own for each family; that of Qwen3-VL, bounds of the area, is here.

Source: transformers `models/qwen2_vl/image_processing_pil_qwen2_vl.py`
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from service.errors import MalformedCheckpoint
from service.media.pixels import CHANNELS, Filter, Picture, Resize, Shown, Size
from service.media.preprocessor import FILE, check_sizes, read_resampling

COARSE_ROWS = 256  # of an image of which little is asked


class Scaling(NamedTuple):
    """How one image is scaled."""

    resizes: tuple[Resize, ...]
    rows: int  # of tokens
    columns: int


class SizeRule(Protocol):
    """To which size an image is scaled."""

    def scaled(self, size: Size, edge: int, most_rows: int) -> Size:
        """Return the size of an image that is scaled.

        Args:
            size: width and height of the image, in pixels.
            edge: pixels of an edge of what is one token, which divides both edges of the result.
            most_rows: the most tokens of the result.
        """
        ...

    def fewest_rows(self, edge: int, most_rows: int) -> int:
        """Return the tokens of the smallest image, at least."""
        ...


@dataclass(frozen=True)
class Area:
    """Bounds of the area, in pixels."""

    fewest_pixels: int
    most_pixels: int

    def scaled(self, size: Size, edge: int, most_rows: int) -> Size:
        """Return a size of about the same aspect; see `SizeRule`."""
        most = min(self.most_pixels, most_rows * edge**2)
        return _scaled(size, edge, min(self.fewest_pixels, most), most)

    def fewest_rows(self, edge: int, most_rows: int) -> int:
        """Return the tokens of the smallest image, at least."""
        return max(min(self.fewest_pixels // edge**2, most_rows), 1)


@dataclass(frozen=True)
class Scaler:
    """Scales images to whole patches, and cuts them."""

    patch_size: int  # pixels of an edge
    merge_size: int  # patches of an edge of what is one token
    padded_rows: tuple[int, ...]  # tokens to which images are padded, smallest first; the largest bounds an image
    rule: SizeRule
    resampling: Filter = Filter.BICUBIC
    has_grid: bool = True  # whether positions of tokens are those of row and column
    coarse_rows: int = COARSE_ROWS  # the most tokens of an image of which little is asked

    @property
    def fewest_rows(self) -> int:
        """The tokens of the smallest image, at least."""
        return self.rule.fewest_rows(self._edge, self.padded_rows[-1])

    def plan(self, size: Size, *, is_coarse: bool = False) -> Scaling:
        """Return how an image of a size is scaled; `is_coarse` asks for few tokens."""
        most = self.padded_rows[-1]
        scaled = self.rule.scaled(size, self._edge, min(most, self.coarse_rows) if is_coarse else most)
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
        return [Shown((padded, grid), num_rows, (scaling.rows, scaling.columns) if self.has_grid else None)]

    @property
    def _edge(self) -> int:
        return self.patch_size * self.merge_size


def read_scaler(
    uri: str, values: Mapping[str, Any], *, patch_size: int, merge_size: int, padded_rows: tuple[int, ...]
) -> Scaler:
    """Read a `preprocessor_config.json` of Qwen3-VL.

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
    check_sizes(uri, values, patch_size=patch_size, merge_size=merge_size)
    edge, bounds = patch_size * merge_size, values.get("size") or {}
    fewest = values.get("min_pixels") or bounds.get("shortest_edge", 64 * edge**2)
    most = values.get("max_pixels") or bounds.get("longest_edge", 16384 * edge**2)
    if type(fewest) is not int or type(most) is not int or not 0 < fewest <= most:
        raise MalformedCheckpoint(uri, FILE, f"size = {bounds!r} has no bounds of an area")
    return Scaler(patch_size, merge_size, padded_rows, Area(fewest, most), resampling)


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
