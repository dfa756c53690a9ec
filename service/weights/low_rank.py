"""Updates of weights by products of two narrow matrices, added while the elements of a weight arrive.

Source: Hu et al. 2021, arXiv:2106.09685, section 4.1 (LoRA).
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from service.weights.cast import cast_into

BLOCK_ELEMENTS = 1024 * 1024  # of a product that is made at once


@dataclass(frozen=True)
class LowRankUpdate:
    """What is added to a weight of shape [out, in]: `b @ a`."""

    a: Float[np.ndarray, "rank in"]  # float32
    b: Float[np.ndarray, "out rank"]  # float32, the adapter's scale included

    @property
    def transposed(self) -> "LowRankUpdate":
        """The same update of a weight that is stored [in, out]."""
        return LowRankUpdate(self.b.T, self.a.T)

    @property
    def bound(self) -> float:
        """A number that no element of the update exceeds in magnitude; infinite or NaN if an element may be so."""
        with np.errstate(over="ignore", invalid="ignore"):
            return float((np.abs(self.b) @ np.abs(self.a).max(axis=1)).max())

    def added_to(self, first: int, values: np.ndarray) -> Float[np.ndarray, " element"]:
        """Return consecutive elements of a weight with the update added, as float32.

        Args:
            first: the index of the first element in row-major order.
            values: shape [n], of any floating type; left as they are.
        """
        width = self.a.shape[1]
        sums = np.empty(len(values), np.float32)
        cast_into(sums, values)
        end, block = first + len(values), max(1, BLOCK_ELEMENTS // width)
        for row in range(first // width, -(-end // width), block):
            update = (self.b[row : row + block] @ self.a).reshape(-1)
            start = row * width
            low, high = max(first, start), min(end, start + len(update))
            sums[low - first : high - first] += update[low - start : high - start]
        return sums
