"""An adapter in the host's memory, laid out as the slots of an engine are."""

from collections.abc import Mapping, Sequence

import numpy as np

from service.engine.request import Adapter
from service.models.adapter_arrays import A, AdapterShapes, B, slot_arrays
from service.models.interface import LayerGroup
from service.models.weight_spec import WeightSpec
from service.weights.low_rank import LowRankUpdate


def host_adapter(
    name: str,
    digest: bytes,
    updates: Mapping[str, LowRankUpdate],
    *,
    specs: Sequence[WeightSpec],
    groups: Sequence[LayerGroup],
    shapes: AdapterShapes,
    dtype: np.dtype,
) -> Adapter:
    """Lay out an adapter.

    Args:
        name: the model that requests name.
        digest: identifies its files; sequences of equal ones share a slot and prefixes.
        updates: by the names of the model's tensors.
        specs: the weights of the model.
        groups: its layers, as they were compiled.
        shapes: the number of slots, and the rank that each is padded to.
        dtype: the elements that the slots hold.
    """
    by_name = {spec.name: spec for spec in specs}
    pairs = {tensor: (update.a, update.b) for tensor, update in updates.items()}

    def of_group(group: LayerGroup) -> tuple[np.ndarray, ...]:
        made: dict[str, np.ndarray] = {}
        for weight in [array.removesuffix(A) for array in group.adapters if array.endswith(A)]:
            made[weight + A], made[weight + B] = slot_arrays(by_name[weight], pairs, shapes.rank, dtype)
        return tuple(made[array] for array in group.adapters)

    return Adapter(name, digest, tuple(map(of_group, groups)))
