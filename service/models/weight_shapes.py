"""The shapes and places of a model's weights, for lowering ahead of them."""

from collections.abc import Iterable

import jax
import numpy as np

from service.device.mesh import DeviceMesh
from service.models.weight_spec import WeightSpec


def weight_shapes(specs: Iterable[WeightSpec], dtype: np.dtype, mesh: DeviceMesh) -> dict[str, jax.ShapeDtypeStruct]:
    """Return every weight's shape and place, by name."""
    return {
        spec.name: jax.ShapeDtypeStruct(spec.shape, dtype, sharding=mesh.sharding(spec.axes, spec.shape))
        for spec in specs
    }
