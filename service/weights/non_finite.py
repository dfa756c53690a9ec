"""A search for tensors with values that are NaN or infinite, made only once a model has failed to answer."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from service.models.weight_spec import WeightSpec
from service.weights.assembly import TensorPlace

INTEGERS = "biu"  # numpy's kinds of types that hold only finite numbers


def non_finite_tensors(specs: Sequence[WeightSpec], weights: Mapping[str, ArrayLike]) -> Iterator[str]:
    """Return the names of the tensors that have such values, one weight after another.

    Args:
        specs: the weights.
        weights: the arrays by name, on the host or on devices.
    """
    for spec in specs:
        array = np.asarray(weights[spec.name])
        if array.dtype.kind in INTEGERS or _is_finite(array):
            continue
        for index, source in enumerate(spec.sources):
            if not all(map(_is_finite, TensorPlace(spec, index, array).copies)):
                yield from (stored.name for stored in source.stored)


def _is_finite(array: np.ndarray) -> bool:
    return bool(np.isfinite(array.astype(np.float32, copy=False)).all())
