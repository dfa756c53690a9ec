"""A check of a checkpoint's tensors against the weights of the model that its configuration describes."""

from collections.abc import Iterable, Mapping

from service.errors import MalformedCheckpoint
from service.models.weight_spec import TensorSource, WeightSpec

# Tables in old checkpoints that a model computes itself.
_COMPUTED_SUFFIXES = (".rotary_emb.inv_freq",)


def check_tensors(uri: str, specs: Iterable[WeightSpec], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that a checkpoint has every tensor of a model in its shape, and no other.

    Args:
        uri: the checkpoint's address, for messages.
        specs: the model's weights.
        shapes: the shape of each tensor of the checkpoint, by name.

    Raises:
        MalformedCheckpoint: a tensor is missing, has another shape, or has no place in the model.
    """
    sources = {source.name: source for spec in specs for source in spec.sources}
    for name, source in sources.items():
        if name not in shapes:
            raise MalformedCheckpoint(uri, name, f"is missing. config.json asks for it in shape {list(source.shape)}.")
        if shapes[name] != source.shape:
            raise MalformedCheckpoint(
                uri, name, f"has shape {list(shapes[name])}; config.json makes it {list(source.shape)}."
            )
    spare = [name for name in shapes if name not in sources and not name.endswith(_COMPUTED_SUFFIXES)]
    # With tied embeddings some writers store the same table twice; the embedding is the one that is used.
    spare = [name for name in spare if not (name == "lm_head.weight" and _is_tied(sources))]
    if spare:
        raise MalformedCheckpoint(
            uri,
            spare[0],
            f"{len(spare)} tensors such as this one have no place in the model that config.json describes, "
            "so the answers would be wrong. Check model_type and the bias, norm and layer settings there.",
        )


def _is_tied(sources: Mapping[str, TensorSource]) -> bool:
    return "lm_head.weight" not in sources
