"""Updates of weights while their elements arrive: a product of two narrow matrices is added, or values replace them.

Source: Hu et al. 2021, arXiv:2106.09685, section 4.1 (LoRA); PEFT `utils/other.py` (ModulesToSaveWrapper) and
`tuners/trainable_tokens/layer.py` (get_merged_weights).
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

    def applied_to(self, first: int, values: np.ndarray) -> Float[np.ndarray, " element"]:
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


@dataclass(frozen=True)
class TrainedValues:
    """What takes the place of a tensor or of some of its rows, or what is added to it."""

    values: Float[np.ndarray, "..."]  # of any floating type
    rows: tuple[int, ...] | None = None  # of the tensor, ascending, that they are; None for the whole tensor
    is_added: bool = False
    product: LowRankUpdate | None = None  # what is added to the whole tensor that takes the place

    @property
    def transposed(self) -> "TrainedValues":
        """The same update of a weight whose last two axes are exchanged; of some rows there is none."""
        assert self.rows is None, "embeddings are stored one way"
        product = None if self.product is None else self.product.transposed
        return TrainedValues(np.swapaxes(self.values, -1, -2), None, self.is_added, product)

    def applied_to(self, first: int, values: np.ndarray) -> Float[np.ndarray, " element"]:
        """Return consecutive elements of a tensor as they are after the update, in float32; as `LowRankUpdate`."""
        end, made = first + len(values), np.empty(len(values), np.float32)
        if self.rows is None:
            cast_into(made, self.values.reshape(-1)[first:end])
            if self.is_added:
                return made + values.astype(np.float32)
            return made if self.product is None else self.product.applied_to(first, made)
        cast_into(made, values)
        width = self.values.shape[-1]
        for row, own in zip(self.rows, self.values, strict=True):
            low, high = max(first, row * width), min(end, (row + 1) * width)
            if low < high:
                made[low - first : high - first] = own[low - row * width : high - row * width].astype(np.float32)
        return made


type Update = LowRankUpdate | TrainedValues
