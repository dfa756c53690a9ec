"""Gemma 4's rule of sizes: as many whole tokens as a budget allows, whatever the size of the image.

Source: transformers `models/gemma4/image_processing_pil_gemma4.py`
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.errors import MalformedCheckpoint
from service.media.pixels import Filter, Size
from service.media.preprocessor import FILE, check_sizes, read_resampling
from service.media.scaling import Scaler

SERVED = (70, 140, 280, 560, 1120)  # tokens
DEFAULT_ROWS = 280


@dataclass(frozen=True)
class Budget:
    """The tokens that an image has at most, and as nearly as its aspect allows."""

    rows: int

    def scaled(self, size: Size, edge: int, most_rows: int) -> Size:
        """Return a size of about the same aspect, larger or smaller; see `SizeRule`."""
        most = min(self.rows, most_rows)
        factor = math.sqrt(most * edge**2 / (size.width * size.height))
        width, height = (math.floor(factor * pixels / edge) * edge for pixels in size)
        if height == 0:
            return Size(min(size.width // size.height, most) * edge, edge)
        if width == 0:
            return Size(edge, min(size.height // size.width, most) * edge)
        return Size(width, height)

    def fewest_rows(self, edge: int, most_rows: int) -> int:
        """Return the tokens of the smallest image, at least."""
        return max(min(self.rows, most_rows) // 4, 1)  # whole tokens are more than half of each edge


def read_budget(
    uri: str, values: Mapping[str, Any], *, patch_size: int, merge_size: int, padded_rows: tuple[int, ...]
) -> Scaler:
    """Read a `preprocessor_config.json` of Gemma 4.

    Args:
        uri: the checkpoint, for errors.
        values: the file's.
        patch_size: of the model's encoder, in pixels of an edge.
        merge_size: patches of an edge of what is one token.
        padded_rows: tokens to which images are padded; the largest bounds an image.

    Raises:
        MalformedCheckpoint: the file is missing, or asks for what is not done here.
    """
    resampling = read_resampling(uri, values, Filter.BICUBIC, None)
    check_sizes(uri, values, patch_size=patch_size, pooling_kernel_size=merge_size)
    rows = values.get("max_soft_tokens", DEFAULT_ROWS)
    if rows not in SERVED:
        raise MalformedCheckpoint(uri, FILE, f"max_soft_tokens = {rows!r} is not served; only {[*SERVED]}")
    return Scaler(patch_size, merge_size, padded_rows, Budget(rows), resampling, has_grid=False, coarse_rows=SERVED[0])
