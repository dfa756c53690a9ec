"""Choose the files that hold the weights of a Hugging Face snapshot.

| the folder has | read are |
|---|---|
| `model.safetensors` | that file, whatever an index beside it says |
| an index | the files that it names |
| `model-00001-of-0000N` to N and no index | those |
| one variant, such as `model.fp16.safetensors` | that |
| other files of safetensors | all of them |
| none of safetensors | the same, of `pytorch_model.bin` |

Source: transformers `modeling_utils.py` (_get_resolved_checkpoint_files): the order of the first two rows, of both
formats. It reads the others only by their names.
"""

import logging
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from service.checkpoint.layout import INDEX, PICKLED_INDEX, SnapshotLayout, named
from service.checkpoint.model_config import CONFIG_JSON, parse_json_object
from service.errors import AmbiguousCheckpoint, MalformedCheckpoint, MissingFile
from service.storage.objects import ObjectInfo
from service.storage.source import Source

logger = logging.getLogger(__name__)

_SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)((?:\.\w+)?\.(?:safetensors|bin))")
_VARIANT = re.compile(r"(?:model|pytorch_model)\.(\w+)\.(?:safetensors|bin)")
# Mistral's own copy of the weights, under names of its own.
_CONSOLIDATED = re.compile(r"consolidated.*\.safetensors")


def choose_weights(
    source: Source, objects: Sequence[ObjectInfo], layout: SnapshotLayout
) -> tuple[SnapshotLayout, tuple[ObjectInfo, ...]]:
    """Return the files that hold the model, and all files that a Hugging Face snapshot needs.

    Raises:
        MalformedCheckpoint, MissingFile: a file that is named is not there, or none is.
        AmbiguousCheckpoint: several variants of a model are there.
    """
    index_name, standard = (PICKLED_INDEX, "pytorch_model.bin") if layout.is_pickled else (INDEX, "model.safetensors")
    index, single = named(objects, [index_name]), named(layout.weights, [standard])
    config = named(objects, [CONFIG_JSON])
    if single:
        if index:
            facts = {"uri": source.uri, "read": standard, "index": index_name}
            logger.info("one file holds the whole model, so the index beside it is not read", extra=facts)
        return replace(layout, weights=single), (*single, *config)
    if index:
        weight_map, chosen = _of_index(source, index[0], layout.weights)
        return replace(layout, weights=chosen, index=weight_map), (*chosen, *config, *index)
    chosen = _without_index(source.uri, layout.weights)
    return replace(layout, weights=chosen), (*chosen, *config)


def _of_index(
    source: Source, index: ObjectInfo, weights: Sequence[ObjectInfo]
) -> tuple[Mapping[str, str], tuple[ObjectInfo, ...]]:
    weight_map = parse_json_object(source.uri, index.name, source.read(index)).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise MalformedCheckpoint(source.uri, index.name, "has no weight_map of names.")
    weight_map = {tensor: posixpath.normpath(name) for tensor, name in weight_map.items()}
    names, present = set(weight_map.values()), {info.name for info in weights}
    if not names:
        raise MalformedCheckpoint(source.uri, index.name, "names no file: its weight_map is empty.")
    missing = sorted(names - present)
    # Defends against T15.
    if missing:
        others = sorted(present - names)
        there = f"The folder has {_shown(others or sorted(present))}" if present else "The folder has no such file"
        raise MissingFile(
            source.uri,
            f"{index.name} names {missing[0]!r}, which is not there ({len(missing)} of its {len(names)} files are "
            f"not). {there}. Add the files that are missing, or remove {index.name} if it is of another save.",
        )
    numbers = {int(match[3]) for name in names if (match := _SHARD.fullmatch(name))}
    unnamed = sorted(name for name in present - names if (match := _SHARD.fullmatch(name)) and int(match[3]) in numbers)
    if unnamed and len(numbers) == 1 and len(names) < max(numbers):
        raise MalformedCheckpoint(
            source.uri,
            index.name,
            f"names {len(names)} of the {max(numbers)} files of the model, and not {_shown(unnamed)}. Save the model "
            f"again, or remove {index.name}: all files are read without it.",
        )
    return weight_map, named(weights, names)


def _without_index(uri: str, weights: Sequence[ObjectInfo]) -> tuple[ObjectInfo, ...]:
    weights = [info for info in weights if not _CONSOLIDATED.fullmatch(info.name)] or weights
    sets: dict[tuple[str, ...], list[ObjectInfo]] = {}
    for info in weights:
        if match := _SHARD.fullmatch(info.name):
            sets.setdefault((match[1], match[3], match[4]), []).append(info)
    complete = [infos for (_, count, _), infos in sets.items() if len(infos) == int(count)]
    variants = [info for info in weights if _VARIANT.fullmatch(info.name)]
    alternatives = [*complete, *([info] for info in variants)]
    if len(alternatives) > 1:
        shown = _shown([infos[0].name for infos in alternatives])
        raise AmbiguousCheckpoint(
            uri, f"holds {len(alternatives)} variants of the weights: {shown}. Leave the one to serve in the folder."
        )
    if alternatives:
        return tuple(alternatives[0])
    if sets:
        (stem, count, end), infos = next(iter(sets.items()))
        there = {info.name for info in infos}
        missing = sorted(
            name
            for number in range(1, int(count) + 1)
            if (name := f"{stem}-{number:0{len(count)}d}-of-{count}{end}") not in there
        )
        raise MissingFile(
            uri,
            f"{infos[0].name} is one of {int(count)} files, of which {len(infos)} are there. Add the others: "
            f"{_shown(missing)}.",
        )
    return tuple(weights)


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
