"""The arrays of a model that hold several adapters at once, a slot of them for each; no jax.

For each linear layer there are the narrow matrices of every slot: A, by the tensors that the layer's weight joins, and
B, over the rows of the weight. A row of the weight belongs to one tensor, so it takes the product with that tensor's A.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from service.models.adapted import is_adapted
from service.models.weight_spec import WeightSpec

A, B = ".adapters_a", ".adapters_b"


@dataclass(frozen=True)
class AdapterShapes:
    """How many adapters are on the device at once, and how large each may be."""

    num_slots: int
    rank: int  # the largest


class Parts(NamedTuple):
    """The tensors that a weight joins: the axis of its output along which they lie, and how much of it each takes."""

    axis: int
    sizes: tuple[int, ...]


def adapter_specs(specs: Iterable[WeightSpec], shapes: AdapterShapes, dtype: np.dtype) -> tuple[WeightSpec, ...]:
    """Name the arrays of the slots: A [slot, part, rank, in] and B [slot, rank, *out] of each linear layer.

    Args:
        specs: the weights of the model.
        shapes: the number of slots, and the rank that each is padded to.
        dtype: the elements of both arrays.
    """
    made: list[WeightSpec] = []
    for spec in filter(is_adapted, specs):
        first = ("adapter", "part", "rank", spec.axes[-1])
        shape = (shapes.num_slots, len(spec.sources), shapes.rank, spec.shape[-1])
        made.append(WeightSpec(spec.name + A, first, shape, (), dtype=dtype))
        second, shape = ("adapter", "rank", *spec.axes[:-1]), (shapes.num_slots, shapes.rank, *spec.shape[:-1])
        made.append(WeightSpec(spec.name + B, second, shape, (), dtype=dtype))
    return tuple(made)


def weight_parts(specs: Iterable[WeightSpec]) -> Mapping[str, Parts]:
    """Return the parts of each weight that adapters update, by its name."""
    return {
        spec.name: Parts(spec.concat_axis, tuple(source.view[spec.concat_axis] for source in spec.sources))
        for spec in specs
        if is_adapted(spec)
    }


def slot_arrays(
    spec: WeightSpec,
    updates: Mapping[str, tuple[np.ndarray, np.ndarray]],
    rank: int,
    dtype: np.dtype,
) -> tuple[Float[np.ndarray, "part rank in"], Float[np.ndarray, "rank ..."]]:
    """Return A and B of one adapter for a weight, padded with zeros to a rank.

    Args:
        spec: the weight that the adapter updates.
        updates: A [rank, in] and B [out, rank] of tensors that the adapter updates, by the tensor's name.
        rank: at least that of each update.
        dtype: the elements of both arrays.
    """
    a = np.zeros((len(spec.sources), rank, spec.shape[-1]), dtype)
    b = np.zeros((rank, *spec.shape[:-1]), dtype)
    end = 0
    for part, source in enumerate(spec.sources):
        begin, end = end, end + source.view[spec.concat_axis]
        if source.name not in updates:
            continue
        first, second = updates[source.name]
        own = len(first)
        a[part, :own] = first
        rows = second if source.rows is None else second[slice(*source.rows)]
        shape = [own, *source.view[:-1]]
        if source.copies > 1:  # along the last axis before the one along which tensors are joined
            shape[spec.concat_axis] //= source.copies
        of_view = np.repeat(rows.T.reshape(shape), source.copies, axis=spec.concat_axis)
        place = (slice(own), *(slice(None),) * spec.concat_axis, slice(begin, end))
        b[place] = of_view.reshape(b[place].shape)
    return a, b


def slot_bytes(specs: Iterable[WeightSpec]) -> int:
    """Return the size of one slot's arrays, given the specs of those of all slots."""
    return sum(math.prod(spec.shape[1:]) * spec.dtype.itemsize for spec in specs)
