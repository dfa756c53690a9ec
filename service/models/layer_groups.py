"""How a decoder's layers are cut into stages, the parts that are compiled.

A step in one piece has the code of every layer in its executable, and loading that takes longer than in proportion: on
a CPU 0.47 s for 30 layers, 0.07 s for five of them. Layers that look alike share code only by sharing an executable,
and calling one for a few layers at a time costs nothing that shows: the device is still busy with the call before.
"""

from collections.abc import Sequence

from service.models.config import DecoderConfig
from service.models.interface import Stage
from service.models.weight_spec import WeightSpec

# Measured on a CPU: from three layers on, a step takes as long as in one piece; one layer at a time costs it 5 %.
STAGE_SIZES = (3, 4, 5, 6)  # layers
USUAL_STAGE = 5


def decoder_stages(config: DecoderConfig, specs: Sequence[WeightSpec]) -> tuple[Stage, ...]:
    """Cut the layers into stages of as few kinds as possible."""

    def cost(size: int) -> tuple[int, int]:
        num_kinds = len({_looks(config, layers) for layers in _cut(config.num_layers, size)})
        return num_kinds, abs(size - USUAL_STAGE)

    cut = _cut(config.num_layers, min(STAGE_SIZES, key=cost))
    first_of_kind: dict[tuple[int | None, ...], range] = {}
    return tuple(
        Stage(_kind(first_of_kind.setdefault(_looks(config, layers), layers)), layers, _weights(specs, layers))
        for layers in cut
    )


def _cut(num_layers: int, size: int) -> list[range]:
    return [range(first, min(first + size, num_layers)) for first in range(0, num_layers, size)]


def _looks(config: DecoderConfig, layers: range) -> tuple[int | None, ...]:
    """Return what tells one stage's trace from another's."""
    return tuple(config.sliding_window(layer) for layer in layers)


def _kind(layers: range) -> str:
    return f"layers{layers[0]}to{layers[-1]}"


def _weights(specs: Sequence[WeightSpec], layers: range) -> tuple[str, ...]:
    """Return the weights of layers in the order of use, which is the same for every layer."""
    return tuple(spec.name for layer in layers for spec in specs if spec.name.startswith(f"layers.{layer}."))
