"""Groups of a model's layers, each of which is compiled as a program of its own.

The executable of a step in one piece has the code of every layer, and the time to load it grows faster than its size:
on a CPU 0.47 s for 30 layers, 0.07 s for five of them. Layers of equal trace share code only by sharing an executable.
Calling one for a few layers at a time costs no measurable time: the device is still busy with the call before.
"""

from collections.abc import Hashable, Sequence

from service.models.adapter_arrays import A, B
from service.models.interface import LayerGroup
from service.models.weight_spec import WeightSpec

# Measured on a CPU: with three layers or more, a step takes as long as in one piece; with one layer 5 % longer.
GROUP_SIZES = (3, 4, 5, 6)  # layers
USUAL_SIZE = 5


def layer_groups(
    layers: Sequence[Hashable], specs: Sequence[WeightSpec], *, prefix: str = ""
) -> tuple[LayerGroup, ...]:
    """Cut layers into groups of as few kinds as possible.

    Args:
        layers: the description of each; layers of equal description have equal traces.
        specs: the weights of the model.
        prefix: precedes `layers.` in the names of the weights, and the kinds of the groups.
    """

    def cost(size: int) -> tuple[int, int]:
        num_kinds = len({tuple(layers[layer] for layer in part) for part in _cut(len(layers), size)})
        return num_kinds, abs(size - USUAL_SIZE)

    first_of_kind: dict[tuple[Hashable, ...], range] = {}
    groups = []
    for part in _cut(len(layers), min(GROUP_SIZES, key=cost)):
        first = first_of_kind.setdefault(tuple(layers[layer] for layer in part), part)
        weights = _weights(specs, part, prefix)
        adapters = tuple(name for name in weights if name.endswith((A, B)))
        groups.append(LayerGroup(_kind(first, prefix), part, weights, adapters))
    return tuple(groups)


def _cut(num_layers: int, size: int) -> list[range]:
    return [range(first, min(first + size, num_layers)) for first in range(0, num_layers, size)]


def _kind(layers: range, prefix: str) -> str:
    return f"{prefix}layers{layers[0]}to{layers[-1]}"


def _weights(specs: Sequence[WeightSpec], layers: range, prefix: str) -> tuple[str, ...]:
    """Return the names of the layers' weights in the order of use, which is the same for every layer."""
    return tuple(spec.name for layer in layers for spec in specs if spec.name.startswith(f"{prefix}layers.{layer}."))
