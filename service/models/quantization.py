"""The arrays of a model that are stored in 8 bits, each with the scales of its rows beside it; no jax."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import StrEnum

import numpy as np

from service.kernels.limits import INT8_MAX
from service.models.weight_spec import FLOAT32, TensorSource, WeightSpec

INT8 = np.dtype(np.int8)
MAX_INT8_ROW = (2**31 - 1) // INT8_MAX**2  # values; the int32 sum of a product of longer rows may overflow


class Quantization(StrEnum):
    """How the weights of products are stored."""

    NONE = "none"  # in the model's dtype
    INT8 = "int8"  # with a float32 scale for each row; products take int8 activations, with a scale for each token


def scale_name(name: str) -> str:
    """Return the name of the scales of an array."""
    return f"{name}.scale"


def quantized_specs(
    specs: Iterable[WeightSpec], quantization: Quantization, *, has_int8_layers: bool = False
) -> tuple[WeightSpec, ...]:
    """Return the specs of a model whose arrays of products are quantized, each followed by its scales.

    Args:
        specs: of the wide model.
        quantization: of arrays that the checkpoint holds wide.
        has_int8_layers: whether the checkpoint holds those of layers in int8, and the scales of each in a tensor of its
            name and `_scale`.
    """
    made: list[WeightSpec] = []
    for spec in specs:
        is_stored = has_int8_layers and spec.name.startswith("layers.")
        if spec.num_in_axes and (is_stored or quantization is Quantization.INT8):
            made += _quantized(spec, is_stored=is_stored)
        else:
            made.append(spec)
    return tuple(made)


def _quantized(spec: WeightSpec, *, is_stored: bool) -> Iterator[WeightSpec]:
    num_in_axes = spec.num_in_axes
    scale = scale_name(spec.name)
    sources = tuple(replace(source, is_int8=is_stored) for source in spec.sources)
    yield replace(spec, dtype=INT8, scale=scale, sources=sources)
    yield WeightSpec(
        scale,
        spec.axes[:-num_in_axes],
        spec.shape[:-num_in_axes],
        tuple(_scale_source(source, num_in_axes, is_stored=is_stored) for source in spec.sources),
        spec.concat_axis,
        FLOAT32,
        is_row_scale=not is_stored,
    )


def _scale_source(source: TensorSource, num_in_axes: int, *, is_stored: bool) -> TensorSource:
    view = source.view[:-num_in_axes]
    if not is_stored:
        return replace(source, view=view)
    return replace(source, name=f"{source.name}_scale", shape=(source.shape[0], 1), view=view)
