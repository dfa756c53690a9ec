"""The small JSON files that sentence-transformers puts beside a model, read together."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from service.checkpoint.layout import named
from service.checkpoint.model_config import parse_json
from service.models.encoders.sentence import LENGTH, MODULES, PROMPTS
from service.storage.objects import ObjectInfo
from service.storage.source import Source

NUM_READERS = 8


def read_sentence_files(source: Source, objects: Sequence[ObjectInfo]) -> Mapping[str, Any]:
    """Return the content of each file, by its name; empty for a checkpoint without them.

    Raises:
        CheckpointError: a file cannot be read, or is not JSON.
    """
    found = [info for info in objects if info.name in (MODULES, PROMPTS, LENGTH) or _is_of_a_module(info.name)]
    if not any(info.name in (MODULES, PROMPTS, LENGTH) for info in found):
        return {}
    with ThreadPoolExecutor(NUM_READERS, thread_name_prefix="sentence") as pool:
        contents = pool.map(lambda info: parse_json(source.uri, info.name, source.read(info)), found)
        return {info.name: content for info, content in zip(found, contents, strict=True)}


def weights_of_modules(objects: Sequence[ObjectInfo], files: Mapping[str, Any]) -> tuple[ObjectInfo, ...]:
    """Return the weights of the modules after the model, each in the folder of its module."""
    folders = [str(module.get("path")) for module in files.get(MODULES, ()) if module.get("path")]
    safe = named(objects, [f"{folder}/model.safetensors" for folder in folders])
    return safe or named(objects, [f"{folder}/pytorch_model.bin" for folder in folders])


def _is_of_a_module(name: str) -> bool:
    """Return whether a file is the configuration of a module, such as `1_Pooling/config.json`."""
    folder, _, file = name.rpartition("/")
    return file == "config.json" and folder[:1].isdecimal() and "/" not in folder
