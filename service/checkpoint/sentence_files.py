"""The small JSON files that sentence-transformers puts beside a model, read together."""

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from service.checkpoint.file_set import FileSet
from service.checkpoint.layout import named
from service.checkpoint.model_config import parse_json, parse_json_object
from service.errors import MalformedCheckpoint
from service.models.encoders.registry import is_encoder
from service.models.encoders.sentence import LENGTHS, MODULES, PROMPTS, TOKENIZER
from service.storage.objects import ObjectInfo
from service.storage.source import Source

NUM_READERS = 8
AT_THE_TOP = (MODULES, PROMPTS, *LENGTHS)


def read_sentence_files(source: Source, objects: Sequence[ObjectInfo]) -> Mapping[str, Any]:
    """Return the content of each file, by its name; empty for a checkpoint without them.

    Raises:
        CheckpointError: a file cannot be read, or is not JSON.
    """
    found = [info for info in objects if info.name in AT_THE_TOP or _is_of_a_module(info.name)]
    if not any(info.name in AT_THE_TOP for info in found):
        return {}
    files = _read(source, found)
    # Usually all have been read; a module may lie in a folder without a number.
    configs = [f"{folder}/config.json" for folder in _folders(files)]
    return files | _read(source, [info for info in named(objects, configs) if info.name not in files])


def with_tokenizer_config(
    files: Mapping[str, Any], hub_config: Mapping[str, Any], tokenizer: FileSet
) -> Mapping[str, Any]:
    """Return the files of an encoder, with the tokenizer's configuration if nothing else states a length.

    Raises:
        CheckpointError: the file cannot be read, or is not JSON.
    """
    if not is_encoder(hub_config, files) or any(files.get(name, {}).get("max_seq_length") for name in LENGTHS):
        return files
    found = named(tokenizer.objects, [TOKENIZER], tokenizer.folder)
    if not found:
        return files
    source = tokenizer.source
    return {**files, TOKENIZER: parse_json_object(source.uri, found[0].name, source.read(found[0]))}


def stated_values(files: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values that take the place of those of `config.json`.

    Source: sentence-transformers 6.2 `base/modules/transformer.py` (_load_init_kwargs); older files
    name it config_args.
    """
    length: Mapping[str, Any] = next((files[name] for name in LENGTHS if files.get(name)), {})
    return {key: value for name in ("config_args", "config_kwargs") for key, value in (length.get(name) or {}).items()}


def weights_of_modules(objects: Sequence[ObjectInfo], files: Mapping[str, Any]) -> tuple[ObjectInfo, ...]:
    """Return the weights of the modules after the model, each in the folder of its module."""
    found = (
        named(objects, [f"{folder}/model.safetensors"]) or named(objects, [f"{folder}/pytorch_model.bin"])
        for folder in _folders(files)
    )
    return tuple(itertools.chain.from_iterable(found))


def _folders(files: Mapping[str, Any]) -> list[str]:
    """Return the folders of the modules, without the checkpoint's own."""
    paths = [str(module.get("path", "")).strip("./") for module in files.get(MODULES, ())]
    return [path for path in paths if path]


def _read(source: Source, found: Sequence[ObjectInfo]) -> dict[str, Any]:
    if not found:
        return {}
    with ThreadPoolExecutor(NUM_READERS, thread_name_prefix="sentence") as pool:
        contents = pool.map(lambda info: _parse(source.uri, info.name, source.read(info)), found)
        return {info.name: content for info, content in zip(found, contents, strict=True)}


def _parse(uri: str, name: str, data: bytes) -> Any:
    if name != MODULES:
        return parse_json_object(uri, name, data)
    modules = parse_json(uri, name, data)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise MalformedCheckpoint(uri, name, "is not a list of modules.")
    return modules


def _is_of_a_module(name: str) -> bool:
    """Return whether a file is the configuration of a module, such as `1_Pooling/config.json`."""
    folder, _, file = name.rpartition("/")
    return file == "config.json" and folder[:1].isdecimal() and "/" not in folder
