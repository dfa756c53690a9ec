"""Weights in 4 bits as rows of their values, whether a CPU holds them interleaved or not."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from service.models.weight_spec import WeightSpec
from service.weights.interleaved import interleaved_names


def in_rows(specs: Sequence[WeightSpec], weights: Mapping[str, jax.Array]) -> dict[str, np.ndarray]:
    """Return a model's weights on a host; those in int4 as int8."""
    interleaved = interleaved_names({spec.name: spec for spec in specs})
    return {name: _in_rows(np.asarray(each), is_interleaved=name in interleaved) for name, each in weights.items()}


def _in_rows(array: np.ndarray, *, is_interleaved: bool) -> np.ndarray:
    is_int4 = array.dtype.name == "int4"
    if is_int4:
        array = array.astype(np.int8)
    if not is_interleaved:
        return array
    if not is_int4:
        return array.reshape(-1, array.shape[-1], 16).swapaxes(1, 2).reshape(array.shape)
    rows = np.empty((array.size // array.shape[-1], array.shape[-1]), np.int8)
    for panel, values in enumerate(array.reshape(-1, array.shape[-1] // 8, 16, 8)):
        for row in range(16):
            octets = rows[16 * panel + row].reshape(-1, 8)
            octets[:, :4], octets[:, 4:] = values[:, row, ::2], values[:, row, 1::2]
    return ((rows & 15) - 8).reshape(array.shape)
