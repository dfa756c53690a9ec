"""The arrays of a model that are stored in 8 bits, each with the scales of its rows beside it; no jax."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import StrEnum

import ml_dtypes
import numpy as np

from service.kernels.limits import INT8_MAX
from service.models.stored.layers import Encoding, LayerStorage
from service.models.weight_spec import FLOAT32, TensorSource, WeightSpec

INT8, FP8 = np.dtype(np.int8), np.dtype(ml_dtypes.float8_e4m3fn)
# Values of a row whose sums int32 holds; a checkpoint's own int8 may have -128.
MAX_INT8_ROW = (2**31 - 1) // (INT8_MAX * (INT8_MAX + 1))


class Quantization(StrEnum):
    """How the weights of products are stored."""

    NONE = "none"  # in the model's dtype
    INT8 = "int8"  # with a float32 scale for each row; products take int8 activations, with a scale for each token
    FP8 = "fp8"  # float8_e4m3fn, with such scales; products take such activations where the device multiplies FP8


def layers_quantization(quantization: Quantization, storage: LayerStorage | None) -> Quantization:
    """Return how the weights of layers are stored.

    A checkpoint's int8 stays so, and other formats become int8 or FP8, but for those that wider types hold exactly.
    """
    if storage is not None and storage.is_exact:
        return quantization
    is_int8 = storage is not None and (storage.encoding is Encoding.INT8 or quantization is Quantization.NONE)
    return Quantization.INT8 if is_int8 else quantization


def scale_name(name: str) -> str:
    """Return the name of the scales of an array."""
    return f"{name}.scale"


def quantized_specs(
    specs: Iterable[WeightSpec], quantization: Quantization, storage: LayerStorage | None = None
) -> tuple[WeightSpec, ...]:
    """Return the specs of a model whose arrays of products are quantized, each followed by its scales.

    Args:
        specs: the weights of the model before quantization.
        quantization: of arrays that the checkpoint holds wide.
        storage: how the checkpoint holds those of layers; None if it holds them wide.
    """
    made: list[WeightSpec] = []
    dtype = FP8 if quantization is Quantization.FP8 else INT8
    for spec in specs:
        stored = spec if storage is None or not spec.name.startswith("layers.") else _stored(spec, storage)
        is_stored = any(source.is_int8 or source.packing for source in stored.sources)
        is_exact = storage is not None and storage.is_exact
        if spec.num_in_axes and ((is_stored and not is_exact) or quantization is not Quantization.NONE):
            made += _quantized(stored, dtype)
        else:
            made.append(stored)
    return tuple(made)


def _stored(spec: WeightSpec, storage: LayerStorage) -> WeightSpec:
    if not spec.num_in_axes:
        return spec
    how = {"is_int8": True} if storage.encoding is Encoding.INT8 else {"packing": storage, "is_transposed": False}
    sources = (replace(source, **how) if storage.holds(source.name) else source for source in spec.sources)
    return replace(spec, sources=tuple(sources))


def _quantized(spec: WeightSpec, dtype: np.dtype) -> Iterator[WeightSpec]:
    """Return a weight in 8 bits and its scales, which the checkpoint holds only if it holds int8."""
    num_in_axes, has_scales = spec.num_in_axes, spec.sources[0].is_int8
    scale = scale_name(spec.name)
    yield replace(spec, dtype=INT8 if has_scales else dtype, scale=scale)
    yield WeightSpec(
        scale,
        spec.axes[:-num_in_axes],
        spec.shape[:-num_in_axes],
        tuple(_scale_source(source, num_in_axes) for source in spec.sources),
        spec.concat_axis,
        FLOAT32,
        is_row_scale=not has_scales,
    )


def _scale_source(source: TensorSource, num_in_axes: int) -> TensorSource:
    view = source.view[:-num_in_axes]
    if not source.is_int8:
        return replace(source, view=view)
    return TensorSource(f"{source.name}_scale", (source.shape[0], 1), view, source.copies, rows=source.rows)
