"""Image preprocessing of Idefics3 and SmolVLM: square tiles, and the whole image scaled down as one more.

That of Gemma 3 has only the whole image.

Source: transformers `models/idefics3/image_processing_pil_idefics3.py`, `models/gemma3/image_processing_pil_gemma3.py`
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from service.errors import MalformedCheckpoint
from service.media.pixels import Filter, Picture, Resize, Shown, Size
from service.media.preprocessor import FILE, read_resampling

LARGEST_EDGE = 4096  # pixels, whatever the file asks for


class Tiling(NamedTuple):
    """How one image is cut."""

    resizes: tuple[Resize, ...]
    rows: int  # of tiles; 0 for only the whole image
    columns: int

    @property
    def num_tiles(self) -> int:
        """The tiles, with the whole image as the last."""
        return self.rows * self.columns + 1


@dataclass(frozen=True)
class Tiler:
    """Cuts images into tiles."""

    tile_size: int  # pixels of an edge
    tile_rows: int  # tokens of a tile
    longest_edge: int | None  # to which an image is brought before it is cut; None: it becomes a tile at once
    is_splitting: bool = True  # whether there are tiles, and not only the whole image
    resampling: Filter = Filter.LANCZOS
    max_rows: int | None = None  # tokens of an image, unless a tile alone has more; None for any

    def plan(self, size: Size, *, is_coarse: bool = False) -> Tiling:
        """Return how an image of a size is cut; `is_coarse` asks for only the whole image.

        An image of too many tokens is brought to an edge that is smaller by whole tiles.
        """
        if self.longest_edge is None:
            return Tiling((Resize(Size(self.tile_size, self.tile_size)),), 0, 0)
        if self.max_rows is None:
            return self._cut(size, self.longest_edge, is_coarse=is_coarse)
        edges = range(self.longest_edge, 0, -self.tile_size)
        tilings = (self._cut(size, edge, is_coarse=is_coarse) for edge in edges)
        fitting = (tiling for tiling in tilings if sum(self.num_rows(tiling)) <= self.max_rows)
        return next(fitting, self._cut(size, self.longest_edge, is_coarse=True))

    def _cut(self, size: Size, edge: int, *, is_coarse: bool) -> Tiling:
        whole = Resize(Size(self.tile_size, self.tile_size))
        fitted = _bounded(_with_longest_edge(size, edge))
        if is_coarse or not self.is_splitting:
            return Tiling((Resize(fitted, is_wanted=False), whole), 0, 0)
        sheet = _whole_tiles(fitted, self.tile_size)
        columns, rows = sheet.width // self.tile_size, sheet.height // self.tile_size
        if rows * columns == 1:
            return Tiling((Resize(fitted, is_wanted=False), whole), 0, 0)
        return Tiling((Resize(fitted, is_wanted=False), Resize(sheet), whole), rows, columns)

    @property
    def fewest_rows(self) -> int:
        """The tokens of the smallest image."""
        return self.tile_rows

    def num_rows(self, tiling: Tiling) -> list[int]:
        """Return the tokens of each part of an image."""
        return [self.tile_rows] * tiling.num_tiles

    def shown(self, tiling: Tiling, pictures: Sequence[Picture]) -> list[Shown]:
        """Return the tiles of an image in the order of a prompt, row by row, and then the whole image."""
        *sheets, whole = pictures
        size = self.tile_size
        found = [
            np.ascontiguousarray(sheet[row * size : (row + 1) * size, column * size : (column + 1) * size])
            for sheet in sheets
            for row in range(tiling.rows)
            for column in range(tiling.columns)
        ]
        return [Shown(tile, self.tile_rows) for tile in (*found, whole)]


def read_tiler(
    uri: str, values: Mapping[str, Any], *, tile_size: int, tile_rows: int, max_rows: int | None = None
) -> Tiler:
    """Read a `preprocessor_config.json`.

    Args:
        uri: the checkpoint, for errors.
        values: the file's.
        tile_size: what the model's encoder takes, in pixels of an edge.
        tile_rows: tokens of a tile.
        max_rows: tokens of an image; None for as many as the file allows.

    Raises:
        MalformedCheckpoint: the file is missing, or asks for what is not done here.
    """
    resampling = read_resampling(uri, values, Filter.LANCZOS)
    stated = _longest_edge(uri, values, "max_image_size", tile_size)
    if stated != tile_size:
        raise MalformedCheckpoint(
            uri, FILE, f"max_image_size is {stated} pixels, and the encoder of config.json takes {tile_size}"
        )
    return Tiler(
        tile_size,
        tile_rows,
        _longest_edge(uri, values, "size", 4 * tile_size),
        bool(values.get("do_image_splitting", True)),
        resampling,
        max_rows,
    )


def read_square(uri: str, values: Mapping[str, Any], *, tile_size: int, tile_rows: int) -> Tiler:
    """Read a `preprocessor_config.json` that makes a square of every image, and nothing more.

    Args:
        uri: the checkpoint, for errors.
        values: the file's.
        tile_size: what the model's encoder takes, in pixels of an edge.
        tile_rows: tokens of an image.

    Raises:
        MalformedCheckpoint: the file is missing, or asks for what is not done here.
    """
    resampling = read_resampling(uri, values, Filter.BILINEAR)
    if values.get("do_pan_and_scan"):
        raise MalformedCheckpoint(uri, FILE, "do_pan_and_scan = True is not served; only False, as by default")
    expected = {"height": tile_size, "width": tile_size}
    if values.get("size") != expected:
        raise MalformedCheckpoint(
            uri, FILE, f"size = {values.get('size')!r} is not what the encoder of config.json takes, {expected}"
        )
    return Tiler(tile_size, tile_rows, None, resampling=resampling)


def _longest_edge(uri: str, values: Mapping[str, Any], name: str, default: int) -> int:
    stated = values.get(name, {"longest_edge": default})
    edge = stated.get("longest_edge") if isinstance(stated, Mapping) else None
    if type(edge) is not int or not 0 < edge <= LARGEST_EDGE:
        reason = f"{name} = {stated!r} is not served; only a longest_edge of up to {LARGEST_EDGE} pixels"
        raise MalformedCheckpoint(uri, FILE, reason)
    return edge


def _with_longest_edge(size: Size, edge: int) -> Size:
    aspect = size.width / size.height
    if size.width >= size.height:
        width, height = edge, int(edge / aspect)
        return Size(width, max(height + height % 2, 1))
    width, height = int(edge * aspect), edge
    return Size(max(width + width % 2, 1), height)


def _bounded(size: Size) -> Size:
    aspect = size.width / size.height
    if size.width >= size.height and size.width > LARGEST_EDGE:
        return Size(LARGEST_EDGE, max(int(LARGEST_EDGE / aspect), 1))
    if size.height > size.width and size.height > LARGEST_EDGE:
        return Size(max(int(LARGEST_EDGE * aspect), 1), LARGEST_EDGE)
    return size


def _whole_tiles(size: Size, tile: int) -> Size:
    """Return the nearest larger size of whole tiles, of about the same aspect."""
    aspect = size.width / size.height
    if size.width >= size.height:
        width = math.ceil(size.width / tile) * tile
        return Size(width, math.ceil(int(width / aspect) / tile) * tile)
    height = math.ceil(size.height / tile) * tile
    return Size(math.ceil(int(height * aspect) / tile) * tile, height)
