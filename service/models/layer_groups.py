"""Groups of a model's layers, each of which is compiled as a program of its own.

The executable of a step in one piece has the code of every layer, and the time to load it grows faster than its size:
on a CPU 0.47 s for 30 layers, 0.07 s for five of them. Layers of equal trace share code only by sharing an executable.
Calling one for a few layers at a time costs no measurable time: the device is still busy with the call before.
"""

from collections.abc import Hashable, Sequence

from service.models.adapter_arrays import A, B
from service.models.description import ENCODER_PREFIX, DecoderConfig, ImageEncoder, Layer, PatchEncoder, SpeechEncoder
from service.models.interface import LayerGroup, SharedCache
from service.models.weight_spec import WeightSpec

# Measured on a CPU: with three layers or more, a step takes as long as in one piece; with one layer 5 % longer.
GROUP_SIZES = (3, 4, 5, 6)  # layers
USUAL_SIZE = 5
# Of models with recurrent layers whose kinds follow each other in no order, as in Nemotron-H: smaller groups, if there
# would be more kinds of groups than these.
SMALL_SIZES, MOST_KINDS = (2, 1), 4


def layer_groups(
    layers: Sequence[Hashable], specs: Sequence[WeightSpec], *, prefix: str = "", part: range | None = None
) -> tuple[LayerGroup, ...]:
    """Cut layers into groups of as few kinds as possible.

    Args:
        layers: the description of each; layers of equal description have equal traces.
        specs: the weights of the model.
        prefix: precedes `layers.` in the names of the weights, and the kinds of the groups.
        part: the layers that are cut; None for all.
    """
    cut_layers = range(len(layers)) if part is None else part

    def cost(size: int) -> tuple[int, int]:
        num_kinds = len({tuple(layers[layer] for layer in group) for group in _cut(cut_layers, size)})
        return num_kinds, abs(size - USUAL_SIZE)

    size = min(GROUP_SIZES, key=cost)
    if any(isinstance(layer, Layer) and layer.state is not None for layer in layers):
        sizes = (size, *SMALL_SIZES)
        size = next((one for one in sizes if cost(one)[0] <= MOST_KINDS), min(sizes, key=cost))
    first_of_kind: dict[tuple[Hashable, ...], range] = {}
    groups = []
    for group in _cut(cut_layers, size):
        first = first_of_kind.setdefault(tuple(layers[layer] for layer in group), group)
        weights = _weights(specs, group, prefix)
        adapters = tuple(name for name in weights if name.endswith((A, B)))
        groups.append(LayerGroup(_kind(first, prefix), group, weights, adapters))
    return tuple(groups)


def decoder_groups(config: DecoderConfig, specs: Sequence[WeightSpec]) -> tuple[LayerGroup, ...]:
    """Cut the layers of a decoder into groups: apart those that have caches, and those that read the others'.

    Args:
        config: its description.
        specs: the weights of the model.
    """
    layers, storing = config.layers, config.storing_layers
    groups = layer_groups(layers, specs, part=storing)
    sharing = range(len(storing), len(layers))
    shared = []
    attentions = (layers[number].attention for number in sharing)
    for window in dict.fromkeys(attention.window for attention in attentions if attention is not None):
        producer = config.producer_of(window)
        place = next(number for number, group in enumerate(groups) if producer in group.layers)
        shared.append(SharedCache(window or 0, place, groups[place].layers.index(producer)))
    others = layer_groups(layers, specs, part=sharing) if sharing else ()
    return (*groups, *(group._replace(shared=tuple(shared)) for group in others))


def encoder_groups(
    encoder: SpeechEncoder | ImageEncoder | PatchEncoder, specs: Sequence[WeightSpec]
) -> tuple[LayerGroup, ...]:
    """Cut the layers of an encoder into groups, of which one ends after each layer with a tap.

    Args:
        encoder: its description.
        specs: the weights of the model.
    """
    if not isinstance(encoder, PatchEncoder):
        return layer_groups(encoder.layers, specs, prefix=ENCODER_PREFIX)
    layers = [(layer, number in encoder.taps) for number, layer in enumerate(encoder.layers)]
    ends = sorted({*(tap + 1 for tap in encoder.taps), len(layers)})
    parts = [range(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
    groups = [group for part in parts for group in layer_groups(layers, specs, prefix=ENCODER_PREFIX, part=part)]
    kinds: dict[tuple[Hashable, ...], str] = {}
    for group in groups:
        kinds.setdefault(tuple(layers[layer] for layer in group.layers), group.kind)
    return tuple(group._replace(kind=kinds[tuple(layers[layer] for layer in group.layers)]) for group in groups)


def _cut(layers: range, size: int) -> list[range]:
    return [layers[first : first + size] for first in range(0, len(layers), size)]


def _kind(layers: range, prefix: str) -> str:
    return f"{prefix}layers{layers[0]}to{layers[-1]}"


def _weights(specs: Sequence[WeightSpec], layers: range, prefix: str) -> tuple[str, ...]:
    """Return the names of the layers' weights in the order of use, which is the same for every layer."""
    return tuple(spec.name for layer in layers for spec in specs if spec.name.startswith(f"{prefix}layers.{layer}."))
