"""Names of the programs of an encoder, as bundles and logs have them, one of each kind for each bucket.

embed-…    tokens to hidden states
encode-…   the layers of a group; one for each kind of layer group
vectors-…  hidden states to one vector per text
"""

from collections.abc import Sequence

from service.encoder.shapes import EncoderShapes
from service.models.interface import LayerGroup


def embed_name(bucket: int) -> str:
    """Name the program that begins a step."""
    return f"embed-tokens{bucket}"


def layer_group_name(bucket: int, group: LayerGroup) -> str:
    """Name a layer group's program of a step."""
    return f"encode-tokens{bucket}-{group.kind}"


def vectors_name(bucket: int) -> str:
    """Name the program that ends a step."""
    return f"vectors-tokens{bucket}"


def step_names(bucket: int, groups: Sequence[LayerGroup]) -> list[str]:
    """Name the programs that a step of a bucket runs, each once."""
    names = [embed_name(bucket), *(layer_group_name(bucket, group) for group in groups), vectors_name(bucket)]
    return list(dict.fromkeys(names))


def program_names(shapes: EncoderShapes, groups: Sequence[LayerGroup]) -> list[str]:
    """Name all programs of an encoder, the smallest step first."""
    return [name for bucket in shapes.buckets for name in step_names(bucket, groups)]


def compile_order(shapes: EncoderShapes, groups: Sequence[LayerGroup]) -> list[str]:
    """Name all programs, those of the largest step first: it holds every text."""
    largest = step_names(shapes.buckets[-1], groups)
    return list(dict.fromkeys([*largest, *program_names(shapes, groups)]))
