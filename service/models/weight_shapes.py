"""The shapes and shardings of a model's weights, so that programs are lowered before weights are read."""

from collections.abc import Iterable

import jax

from service.device.mesh import DeviceMesh
from service.models.weight_spec import WeightSpec


def weight_shapes(specs: Iterable[WeightSpec], mesh: DeviceMesh) -> dict[str, jax.ShapeDtypeStruct]:
    """Return every weight's shape, dtype and sharding, by name."""
    return {
        spec.name: jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=mesh.sharding(spec.axes, spec.shape))
        for spec in specs
    }
