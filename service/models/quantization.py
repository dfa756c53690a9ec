"""The arrays of a model that are stored in 8 or 4 bits, each with its scales beside it; no jax."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from enum import StrEnum

import ml_dtypes
import numpy as np

from service.kernels.limits import INT8_MAX
from service.models.stored.layers import Encoding, LayerStorage
from service.models.weight_spec import FLOAT32, FP4, INT4, TensorSource, WeightSpec

INT8, FP8, BFLOAT16 = (np.dtype(each) for each in (np.int8, ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16))
# Values of a row whose sums int32 holds; a checkpoint's own int8 may have -128.
MAX_INT8_ROW = (2**31 - 1) // (INT8_MAX * (INT8_MAX + 1))
STACKED_AXES = 3  # of a tensor that holds all experts
GROUP_COLUMNS = 32  # with a scale and a zero point, where a weight that is wide in a checkpoint becomes 4 bits


class Quantization(StrEnum):
    """How the weights of products are stored."""

    NONE = "none"  # in the model's dtype
    INT8 = "int8"  # with a float32 scale for each row; products take int8 activations, with a scale for each token
    FP8 = "fp8"  # float8_e4m3fn, with such scales; products take such activations where the device multiplies FP8
    INT4 = "int4"  # the layers' with a scale for each group of columns, a checkpoint's or computed; others as INT8


def kept_storage(
    storage: LayerStorage | None,
    quantization: Quantization,
    platform: str,
    num_devices: int = 1,
    *,
    in_any_case: bool = False,
) -> LayerStorage | None:
    """Return how a checkpoint stores its layers, and whether they stay in 4 bits on the device.

    A GPU reads 4 bits in the product. A CPU multiplies rows of int8 faster, and so does a TPU by XLA's estimate (19,000
    cycles for a weight of 8,192 x 2,048 and a token on a v6e, 52,000 with 4 bits): they keep 4 bits only on request,
    or where those rows do not fit.

    Args:
        storage: how the checkpoint stores them; None if it does not quantize them.
        quantization: as requested.
        platform: that of the devices, such as `gpu`.
        num_devices: that share the weights. Several keep neither experts nor FP4 in 4 bits: shares may not be of whole
            groups, and XLA reads no FP4 inside a product.
        in_any_case: whether 4 bits stay on every platform unless 8 are requested.
    """
    if storage is None or storage.obstacle_to_four_bits is not None:
        return storage
    is_kept = quantization is Quantization.INT4 or (
        quantization is Quantization.NONE and (platform == "gpu" or in_any_case)
    )
    is_undivided = is_kept and num_devices == 1
    return replace(storage, is_kept=is_undivided if storage.is_fp4 else is_kept, keeps_undivided=is_undivided)


def layers_quantization(quantization: Quantization, storage: LayerStorage | None) -> Quantization:
    """Return how the weights of layers are stored.

    A checkpoint's int8 stays so, and so may its 4 bits. Other formats become int8 or FP8, but for those that wider
    types hold exactly.
    """
    if storage is not None and storage.is_kept:
        return Quantization.INT4
    if storage is not None and storage.is_exact:
        return quantization
    is_int8 = storage is not None and (storage.encoding is Encoding.INT8 or quantization is Quantization.NONE)
    return Quantization.INT8 if is_int8 else quantization


def scale_name(name: str) -> str:
    """Return the name of the scales of an array."""
    return f"{name}.scale"


def zero_name(name: str) -> str:
    """Return the name of the zero points of an array in 4 bits."""
    return f"{name}.zero"


def quantized_specs(
    specs: Iterable[WeightSpec],
    quantization: Quantization,
    storage: LayerStorage | None = None,
    dtype: np.dtype = FLOAT32,
) -> tuple[WeightSpec, ...]:
    """Return the specs of a model whose arrays of products are quantized, each followed by its scales.

    Args:
        specs: the weights of the model before quantization.
        quantization: of arrays that the checkpoint holds wide.
        storage: how the checkpoint holds those of layers; None if it holds them wide.
        dtype: of activations, and of the scales of groups.
    """
    made: list[WeightSpec] = []
    row_dtype = FP8 if quantization is Quantization.FP8 else INT8
    for spec in specs:
        stored = spec if storage is None or not spec.name.startswith("layers.") else _stored(spec, storage)
        is_stored = any(source.is_int8 or source.packing for source in stored.sources)
        is_exact = all(source.packing is not None and source.packing.is_exact for source in stored.sources)
        if any(source.packing is not None and source.packing.is_kept for source in stored.sources):
            made += _grouped(stored, dtype)
        elif quantization is Quantization.INT4 and storage is None and _has_groups(spec):
            made += _divided(spec)
        elif spec.num_in_axes and ((is_stored and not is_exact) or quantization is not Quantization.NONE):
            made += _quantized(stored, row_dtype)
        else:
            made.append(stored)
    return tuple(made)


def _stored(spec: WeightSpec, storage: LayerStorage) -> WeightSpec:
    if not spec.num_in_axes:
        return spec
    # Weights that are packed in part or in several ways become rows of 8 bits.
    found = [storage.of(source.name) for source in spec.sources]
    is_whole = (
        len({None if each is None else (each.encoding, each.bits, each.block, each.has_zeros) for each in found}) == 1
    )
    can_stay = all(
        each is not None and each.own_obstacle_to_four_bits is None and each.misfit(source.shape) is None
        for each, source in zip(found, spec.sources, strict=True)
    )
    is_fp4 = any(each is not None and each.is_fp4 for each in found)
    is_of_experts = "expert" in spec.axes
    may_stay = storage.keeps_undivided if is_fp4 or is_of_experts else storage.is_kept
    # The kernel of experts reads two columns of a row in a byte.
    has_pairs = not is_of_experts or spec.shape[-1] % 2 == 0
    is_kept = may_stay and is_whole and can_stay and has_pairs
    sources = []
    for source, each in zip(spec.sources, found, strict=True):
        if each is None:
            sources.append(source)
        elif each.encoding is Encoding.INT8:
            sources.append(replace(source, is_int8=True))
        else:
            # Of the formats that are packed, ModelOpt's alone has stacks of experts as they are in the wide checkpoint.
            is_of_modelopt = each.encoding is Encoding.NVFP4 and not each.is_divided
            is_transposed = source.is_transposed and is_of_modelopt and len(source.shape) == STACKED_AXES
            packing = replace(each, is_kept=is_kept, is_transposed=is_transposed)
            sources.append(replace(source, packing=packing, is_transposed=False))
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


def _grouped(spec: WeightSpec, dtype: np.dtype) -> Iterator[WeightSpec]:
    """Return a weight in 4 bits, the scales of its groups, and their zero points if the checkpoint has some."""
    storage, num_in = spec.sources[0].packing, spec.shape[-1]
    assert storage is not None, "only packed weights have groups"
    num_groups = num_in // storage.group_size(num_in)
    # The exponents of MXFP4 and the products of NVFP4's scales go beyond those of float16.
    scale_dtype = FLOAT32 if storage.is_fp4 and dtype == np.float16 else dtype

    def of_groups(name: str, source_name: Callable[[str], str]) -> WeightSpec:
        sources = (
            TensorSource(
                source_name(source.name),
                (*source.shape[:-1], num_groups),
                (*source.view[:-1], num_groups),
                source.copies,
                rows=source.rows,
                made_from=source,
            )
            for source in spec.sources
        )
        return WeightSpec(
            name, spec.axes, (*spec.shape[:-1], num_groups), tuple(sources), spec.concat_axis, scale_dtype
        )

    yield replace(spec, dtype=FP4 if storage.is_fp4 else INT4, scale=scale_name(spec.name))
    yield of_groups(scale_name(spec.name), scale_name)
    if storage.has_zeros:
        yield of_groups(zero_name(spec.name), zero_name)


def _has_groups(spec: WeightSpec) -> bool:
    """Return whether a wide weight becomes 4 bits: one of a layer, but for those of experts and odd sizes."""
    is_of_layer = spec.name.startswith("layers.") and spec.num_in_axes == 1 and "expert" not in spec.axes
    return is_of_layer and spec.shape[-1] % GROUP_COLUMNS == 0


def _divided(spec: WeightSpec) -> Iterator[WeightSpec]:
    """Return a weight in 4 bits and the scales and zero points that quantizing it computes for groups of columns."""
    num_groups = spec.shape[-1] // GROUP_COLUMNS
    sources = tuple(replace(source, view=(*source.view[:-1], num_groups)) for source in spec.sources)
    yield replace(spec, dtype=INT4, scale=scale_name(spec.name))
    for name in (scale_name(spec.name), zero_name(spec.name)):
        shape = (*spec.shape[:-1], num_groups)
        yield WeightSpec(name, spec.axes, shape, sources, spec.concat_axis, BFLOAT16, is_row_scale=True)


def _scale_source(source: TensorSource, num_in_axes: int) -> TensorSource:
    view = source.view[:-num_in_axes]
    if not source.is_int8:
        return replace(source, view=view)
    return TensorSource(f"{source.name}_scale", (source.shape[0], 1), view, source.copies, rows=source.rows)
