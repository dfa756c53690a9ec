"""Weights in 4 bits whose rows are interleaved, as the C++ products read them; see `service/device/native/widen.h`."""

from collections.abc import Mapping

import numpy as np

from service.device.native.library import native_code
from service.kernels.limits import PANEL_ROWS, serves_int4
from service.models.quantization import scale_name, zero_name
from service.models.weight_spec import INT4, WeightSpec

OCTET = 8  # columns whose values of a row follow one another


def interleaved_names(specs: Mapping[str, WeightSpec]) -> frozenset[str]:
    """Return the names of the arrays that are interleaved on a CPU: weights in 4 bits, their scales and zero points.

    Args:
        specs: of a model, by name.
    """
    served = [name for name, spec in specs.items() if spec.dtype == INT4 and _is_served(spec, specs[scale_name(name)])]
    return frozenset(each for name in served for each in (name, scale_name(name), zero_name(name)))


def interleave(array: np.ndarray) -> np.ndarray:
    """Return a weight in int4, or scales or zero points, in the same shape with its rows interleaved."""
    if array.dtype != INT4:
        panels = array.reshape(-1, PANEL_ROWS, array.shape[-1])
        return np.ascontiguousarray(panels.swapaxes(1, 2)).reshape(array.shape)
    # The host has a value in a byte; two that follow one another become one byte on the device. The highest of their 4
    # bits has the sign, and is turned to add 8.
    values = array.view(np.uint8).reshape(-1, PANEL_ROWS, array.shape[-1] // OCTET, 2, OCTET // 2)
    return (values.transpose(0, 2, 1, 4, 3) ^ np.uint8(8)).reshape(array.shape).view(INT4)


def _is_served(spec: WeightSpec, scale: WeightSpec) -> bool:
    num_stacks = int(spec.axes[0] == "expert")
    return serves_int4(native_code(), scale.dtype, spec.shape, num_groups=scale.shape[-1], stack_axes=num_stacks)
