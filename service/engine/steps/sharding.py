"""Where the state, the inputs and the outputs of the compiled functions lie, when several devices share each step."""

from typing import Any, NamedTuple

import jax

from service.models.interface import PagedDecoder


class Placement(NamedTuple):
    """What to tell the compiler of each kind of argument and result: a pytree prefix of shardings.

    On one device all of it is None, which leaves the compiler nothing to decide.
    """

    cache: Any  # is split
    whole: Any  # what comes from the host and goes there, and what lies whole on each device meanwhile


def placement_of(model: PagedDecoder) -> Placement:
    """Return where a model's arrays lie, but for its weights, whose shapes say it of themselves."""
    if model.shardings is None:
        return Placement(cache=None, whole=None)
    return Placement(*model.shardings)


def placed(shapes: Any, where: Any) -> Any:
    """Return a pytree of shapes that say where each of them lies, from a pytree prefix of shardings."""

    def place_all(sharding: Any, part: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), part)

    return jax.tree.map(place_all, where, shapes, is_leaf=lambda node: node is None)
