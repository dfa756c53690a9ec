"""The arrays of a model that are stored in 8 bits, each with the scales of its rows beside it; no jax."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import StrEnum

import numpy as np

from service.kernels.limits import INT8_MAX
from service.models.weight_spec import FLOAT32, WeightSpec

INT8 = np.dtype(np.int8)
MAX_INT8_ROW = (2**31 - 1) // INT8_MAX**2  # values; the int32 sum of a product of longer rows may overflow


class Quantization(StrEnum):
    """How the weights of products are stored."""

    NONE = "none"  # in the model's dtype
    INT8 = "int8"  # with a float32 scale for each row; products take int8 activations, with a scale for each token


def scale_name(name: str) -> str:
    """Return the name of the scales of an array."""
    return f"{name}.scale"


def quantized_specs(specs: Iterable[WeightSpec], quantization: Quantization) -> tuple[WeightSpec, ...]:
    """Return the specs of a model whose arrays of products are quantized, each followed by its scales."""
    if quantization is Quantization.NONE:
        return tuple(specs)
    return tuple(made for spec in specs for made in _quantized(spec))


def _quantized(spec: WeightSpec) -> Iterator[WeightSpec]:
    num_in_axes = spec.num_in_axes
    if not num_in_axes:
        yield spec
        return
    scale = scale_name(spec.name)
    yield replace(spec, dtype=INT8, scale=scale)
    yield WeightSpec(
        scale,
        spec.axes[:-num_in_axes],
        spec.shape[:-num_in_axes],
        tuple(replace(source, view=source.view[:-num_in_axes]) for source in spec.sources),
        spec.concat_axis,
        FLOAT32,
        is_row_scale=True,
    )
