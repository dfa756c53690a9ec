"""Placement of the state, inputs and outputs of compiled functions when several devices share each step."""

from typing import Any, NamedTuple

import jax

from service.models.interface import PagedDecoder


class Placement(NamedTuple):
    """The shardings of each kind of argument and result, as pytree prefixes; None on a single device."""

    caches: Any  # of each layer group, split over the devices
    replicated: Any  # what the host sends and reads, and what every device has a copy of


def placement_of(model: PagedDecoder) -> Placement:
    """Return the placement of a model's arrays except its weights, whose shapes carry their own shardings."""
    if model.shardings is None:
        return Placement(caches=None, replicated=None)
    return Placement(*model.shardings)


def placed(shapes: Any, shardings: Any) -> Any:
    """Return a pytree of shapes with shardings, which are given as a pytree prefix."""

    def place_all(sharding: Any, part: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), part)

    return jax.tree.map(place_all, shardings, shapes, is_leaf=lambda node: node is None)
