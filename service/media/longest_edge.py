"""Pixtral's rule of sizes: an image no longer than some pixels, and filled up to whole tokens by scaling.

Source: transformers `models/pixtral/image_processing_pil_pixtral.py`, `models/pixtral/processing_pixtral.py`
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.errors import MalformedCheckpoint
from service.media.pixels import Filter, Size
from service.media.preprocessor import FILE, read_resampling
from service.media.scaling import Scaler

LINE_END, IMAGE_END = "image_break_token", "image_end_token"  # keys of the processor
DEFAULT_TOKENS = {LINE_END: "[IMG_BREAK]", IMAGE_END: "[IMG_END]"}
DEFAULT_EDGE = 1024


@dataclass(frozen=True)
class LongestEdge:
    """A bound of both edges, in pixels; smaller images keep their size, but for what fills their last tokens."""

    pixels: int

    def scaled(self, size: Size, edge: int, most_rows: int) -> Size:
        """Return a size of about the same aspect; an image of too many tokens has a bound that is smaller by tokens."""
        bound = self.pixels
        while True:
            fitted = self._fitted(size, edge, bound)
            if bound <= edge or fitted.width * fitted.height <= most_rows * edge**2:
                return fitted
            bound = max(bound - edge, edge)

    def fewest_rows(self, edge: int, most_rows: int) -> int:
        """Return the tokens of the smallest image."""
        return 1

    @staticmethod
    def _fitted(size: Size, edge: int, bound: int) -> Size:
        ratio = max(size.width / bound, size.height / bound, 1)
        width, height = (max(math.floor(pixels / ratio), 1) for pixels in size)
        return Size(-(-width // edge) * edge, -(-height // edge) * edge)


def read_longest_edge(
    uri: str,
    values: Mapping[str, Any],
    *,
    patch_size: int,
    merge_size: int,
    padded_rows: tuple[int, ...],
    pixels: tuple[tuple[float, ...], tuple[float, ...]],
) -> Scaler:
    """Read a `preprocessor_config.json` of Pixtral.

    Args:
        uri: the checkpoint, for errors.
        values: the file's.
        patch_size: of the model's encoder, in pixels of an edge.
        merge_size: patches of an edge of what is one token.
        padded_rows: tokens to which images are padded; the largest bounds an image.
        pixels: the mean and the deviation of each channel that the encoder takes.

    Raises:
        MalformedCheckpoint: the file is missing, or asks for what is not done here.
    """
    resampling = read_resampling(uri, values, Filter.BICUBIC, *pixels)
    stated = values.get("patch_size", patch_size)
    # The processor replaces it by that of a token.
    served = [size for pixels in (patch_size, patch_size * merge_size) for size in (pixels, _square(pixels))]
    if stated not in served:
        raise MalformedCheckpoint(uri, FILE, f"patch_size = {stated!r} is not that of config.json, {patch_size}")
    size = values.get("size", {"longest_edge": DEFAULT_EDGE})
    bound = size.get("longest_edge") if isinstance(size, Mapping) else None
    if type(bound) is not int or bound <= 0:
        raise MalformedCheckpoint(uri, FILE, f"size = {size!r} is not served; only a longest_edge in pixels")
    return Scaler(patch_size, merge_size, padded_rows, LongestEdge(bound), resampling, has_grid=False)


def read_line_tokens(uri: str, values: Mapping[str, Any]) -> tuple[str, str]:
    """Return the tokens that end a line of an image's tokens, and an image.

    Raises:
        MalformedCheckpoint: a processor's file names something else.
    """
    found = [values.get(key, default) for key, default in DEFAULT_TOKENS.items()]
    if not all(isinstance(token, str) and token for token in found):
        raise MalformedCheckpoint(uri, "processor_config.json", f"{LINE_END}, {IMAGE_END} = {found!r} are no tokens")
    return found[0], found[1]


def _square(edge: int) -> dict[str, int]:
    return {"height": edge, "width": edge}
