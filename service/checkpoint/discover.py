"""Discovery of a checkpoint: its files, pinned to one version, and its configuration; no weight is read.

The configuration is all that a start needs to lower and compile.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from service.checkpoint import levanter
from service.checkpoint.adapters.locate import LocatedAdapter, locate_adapter
from service.checkpoint.adapters.peft import CONFIG as ADAPTER_CONFIG
from service.checkpoint.file_set import FileSet, OpenSource
from service.checkpoint.head import with_head
from service.checkpoint.image_encoder import with_image_encoder
from service.checkpoint.layout import (
    GENERATION_CONFIG,
    PAIR_OF_VOCABULARY,
    TOKENIZER_FILES,
    VOCABULARIES,
    LevanterLayout,
    SnapshotLayout,
    detect_layout,
    named,
    newest_export,
)
from service.checkpoint.model_config import (
    CONFIG_JSON,
    YAML_SUFFIXES,
    levanter_values,
    parse_json_object,
    parse_levanter_yaml,
)
from service.checkpoint.mtp_layer import with_mtp_layer
from service.checkpoint.quantization_file import with_quantization_file
from service.checkpoint.score_tokens import with_score_token_ids
from service.checkpoint.sentence_files import (
    read_sentence_files,
    stated_values,
    weights_of_modules,
    with_tokenizer_config,
)
from service.checkpoint.stored_names import names_by_file
from service.checkpoint.weight_files import choose_weights
from service.errors import AmbiguousCheckpoint, MissingFile
from service.models.eagle3 import TENSORS, is_eagle3
from service.models.encoders.token_heads import TOKEN_HEAD_FILES
from service.storage.cache.cache import CheckpointCache
from service.storage.location import GcsLocation, HubLocation, LocalLocation, Location, parse_location
from service.storage.objects import ObjectInfo
from service.storage.source import Source

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LocatedCheckpoint:
    """The files of a checkpoint and the configuration of its model."""

    uri: str
    layout: SnapshotLayout | LevanterLayout
    hub_config: Mapping[str, Any]  # the values of a config.json
    weights: FileSet
    tokenizer: FileSet
    sentence_files: Mapping[str, Any] = field(default_factory=dict)  # the JSON of sentence-transformers, by file
    adapter: LocatedAdapter | None = None  # merged into the weights while they are loaded
    generation: Mapping[str, Any] | None = None  # generation_config.json of the model, if its tokenizer is elsewhere
    draft: "LocatedCheckpoint | None" = None  # of the model that drafts for this one

    @property
    def version(self) -> str:
        """A digest of the versions of all files that the weights are made from."""
        adapter = [] if self.adapter is None else [self.adapter.files.version]
        others = [*adapter, *([] if self.draft is None else [self.draft.version])]
        if not others:
            return self.weights.version
        return hashlib.sha256(" ".join([self.weights.version, *others]).encode()).hexdigest()

    @property
    def is_as_saved(self) -> bool:
        """Whether its files are in the dtype that its configuration names."""
        return isinstance(self.layout, SnapshotLayout) and not self.layout.is_conversion

    @property
    def weight_files(self) -> Sequence[str]:
        """The names of the files of weights."""
        return [info.name for info in self.layout.weights]


def locate(
    uri: str,
    open_source: OpenSource,
    *,
    model_config_uri: str | None = None,
    tokenizer_uri: str | None = None,
    adapter_uri: str | None = None,
    cache: CheckpointCache | None = None,
    target: LocatedCheckpoint | None = None,
) -> LocatedCheckpoint:
    """Find a checkpoint, its configuration and its tokenizer.

    Args:
        uri: MODEL_URI.
        open_source: opens a location; the caller knows the cache and the emulator.
        model_config_uri: MODEL_CONFIG_URI, for a Levanter checkpoint without a configuration next to it or above it.
        tokenizer_uri: TOKENIZER_URI, for a tokenizer in another location.
        adapter_uri: ADAPTER_URI, for an adapter to merge into the weights.
        cache: where files of a bucket may be; they are read there then.
        target: the model that this one drafts for; a head has that one's tokenizer. None if it drafts for none.

    Raises:
        CheckpointError: a file is missing, ambiguous or malformed; the message names the setting that supplies it.
        SettingsError: an address is malformed.
    """
    location = parse_location(uri)
    source = open_source(location)
    objects, above = source.list(), []
    if (export := newest_export(objects)) is not None:
        logger.info("the folder holds a model for each step; the newest is served", extra={"uri": uri, "step": export})
        above = [_Folder(source, objects, "")]
        location = _below(location, export)
        source = open_source(location)
        objects = source.list()
    layout = detect_layout(source.uri, objects)
    folders = [_Folder(source, objects, layout.folder if isinstance(layout, LevanterLayout) else ""), *above]
    if isinstance(layout, LevanterLayout):
        levanter.require_levanter(source.uri)
        logger.info("found a Levanter checkpoint", extra={"uri": source.uri, "step": layout.step})
        folders += _above(location, folders[0], open_source)
    hub_config = _hub_config(source.uri, layout, folders, model_config_uri, open_source)
    generation = None
    if tokenizer_uri is not None:
        tokenizer_source = open_source(parse_location(tokenizer_uri, "TOKENIZER_URI"))
        tokenizer_folders = [_Folder(tokenizer_source, tokenizer_source.list(), "")]
        generation = _generation(folders)
    else:
        tokenizer_folders = folders
    is_head = target is not None and is_eagle3(hub_config)
    tokenizer = target.tokenizer if target is not None and is_head else _tokenizer(source.uri, tokenizer_folders)
    weights = layout.weights
    sentence_files: Mapping[str, Any] = {}
    if isinstance(layout, SnapshotLayout):
        sentence_files = read_sentence_files(source, objects)
        hub_config = {**hub_config, **stated_values(sentence_files)}
        sentence_files = with_tokenizer_config(sentence_files, hub_config, tokenizer)
        layout, weights = choose_weights(source, objects, layout)
        modules = (*weights_of_modules(objects, sentence_files), *named(objects, TOKEN_HEAD_FILES))
        layout = replace(layout, weights=(*layout.weights, *modules))
        hub_config, quantization = with_quantization_file(source, objects, layout, hub_config, cache)
        weights = (*weights, *modules, *quantization)
    if tokenizer.source is source:  # one source: one entry of the cache
        weights = tuple(dict.fromkeys((*weights, *tokenizer.objects)))
    files = FileSet(source, weights, folders[0].folder)
    if is_head and isinstance(layout, SnapshotLayout):
        names = names_by_file(files, layout, cache).values()  # which decide whether it has embeddings of its own
        hub_config = {**hub_config, TENSORS: tuple(sorted(name for own in names for name in own))}
        return LocatedCheckpoint(source.uri, layout, hub_config, files, tokenizer)
    hub_config = with_score_token_ids(source.uri, hub_config, tokenizer.source, tokenizer.objects)
    if isinstance(layout, SnapshotLayout):
        hub_config = with_image_encoder(files, layout, hub_config, cache)
        hub_config = with_head(files, layout, hub_config, sentence_files, cache)
        hub_config = with_mtp_layer(files, layout, hub_config, cache)
    adapter = None if adapter_uri is None else locate_adapter(adapter_uri, open_source)
    return LocatedCheckpoint(source.uri, layout, hub_config, files, tokenizer, sentence_files, adapter, generation)


@dataclass(frozen=True)
class _Folder:
    """A folder that may hold the configuration and the tokenizer."""

    source: Source
    objects: Sequence[ObjectInfo]
    folder: str

    def find(self, *names: str) -> tuple[ObjectInfo, ...]:
        return named(self.objects, names, self.folder)

    def files(self) -> list[ObjectInfo]:
        """Return the files directly in the folder."""
        inside = [info for info in self.objects if info.name.startswith(self.folder)]
        return [info for info in inside if "/" not in info.name[len(self.folder) :]]


def _below(location: Location, folder: str) -> Location:
    """Return the address of a folder inside another."""
    match location:
        case LocalLocation(path):
            return LocalLocation(path / folder)
        case GcsLocation(bucket, prefix):
            return GcsLocation(bucket, f"{prefix}/{folder}".strip("/"))
        case HubLocation(repo, revision, above):
            return HubLocation(repo, revision, f"{above}/{folder}".strip("/"))


def _above(location: Location, step: _Folder, open_source: OpenSource) -> list[_Folder]:
    """Return the run's folder, from the same listing if that holds it, otherwise from the parent address."""
    if step.folder:
        return [_Folder(step.source, step.objects, "")]
    match location:
        case LocalLocation(path):
            parent: Location = LocalLocation(path.parent)
        case GcsLocation(bucket, prefix) if "/" in prefix:
            parent = GcsLocation(bucket, prefix.rsplit("/", 1)[0])
        case _:
            return []
    source = open_source(parent)
    # Only files directly in the parent are of interest, and it may hold many other steps.
    return [_Folder(source, [info for info in source.list() if "/" not in info.name], "")]


def _hub_config(
    uri: str,
    layout: SnapshotLayout | LevanterLayout,
    folders: Sequence[_Folder],
    model_config_uri: str | None,
    open_source: OpenSource,
) -> Mapping[str, Any]:
    if model_config_uri is not None:
        folder, _, name = model_config_uri.rpartition("/")
        source = open_source(parse_location(folder or ".", "MODEL_CONFIG_URI"))
        found = named(source.list(), [name])
        if not found:
            raise MissingFile(model_config_uri, "there is no such file; MODEL_CONFIG_URI names it.")
        return _read_config(uri, layout, source, found[0], folders[0])
    for folder in folders:
        if found := folder.find(CONFIG_JSON):
            return _read_config(uri, layout, folder.source, found[0], folders[0])
        yamls = [info for info in folder.files() if info.name.endswith(YAML_SUFFIXES)]
        if isinstance(layout, LevanterLayout) and yamls:
            if len(yamls) > 1:
                names = ", ".join(info.name for info in yamls)
                raise AmbiguousCheckpoint(uri, f"holds several YAML files ({names}). Set MODEL_CONFIG_URI to one.")
            return _read_config(uri, layout, folder.source, yamls[0], folders[0])
    if any(folder.find(ADAPTER_CONFIG) for folder in folders):
        raise MissingFile(uri, "is an adapter. Set MODEL_URI to its base model, and ADAPTER_URI to this folder.")
    remedy = (
        "Put a Hugging Face config.json or the Levanter YAML beside the step or above it, or set MODEL_CONFIG_URI."
        if isinstance(layout, LevanterLayout)
        else "Copy it from the model that was fine-tuned, or set MODEL_CONFIG_URI."
    )
    raise MissingFile(uri, f"the model configuration {CONFIG_JSON} is missing. {remedy}")


def _read_config(
    uri: str, layout: SnapshotLayout | LevanterLayout, source: Source, info: ObjectInfo, step: _Folder
) -> Mapping[str, Any]:
    data = source.read(info)
    if not info.name.endswith(YAML_SUFFIXES):
        values = parse_json_object(source.uri, info.name, data)
        return levanter_values(uri, info.name, values) if isinstance(layout, LevanterLayout) else values
    manifest = step.find("manifest.json")
    vocab_size = levanter.stored_vocab_size(step.source.read(manifest[0])) if manifest else None
    if vocab_size is None:
        raise MissingFile(
            uri,
            f"{info.name} does not say the vocabulary's size, and an older checkpoint does not either. "
            "Set MODEL_CONFIG_URI to a Hugging Face config.json.",
        )
    values = parse_levanter_yaml(source.uri, info.name, data, vocab_size=vocab_size)
    if values is None:
        raise MissingFile(
            uri, f"{info.name} has no `model:` part with a type. Set MODEL_CONFIG_URI to the file that has."
        )
    return values


def _tokenizer(uri: str, folders: Sequence[_Folder]) -> FileSet:
    for folder in folders:
        found = folder.find(*TOKENIZER_FILES)
        names = {info.name.removeprefix(folder.folder) for info in found}
        if not names.isdisjoint(VOCABULARIES) or names.issuperset(PAIR_OF_VOCABULARY):
            return FileSet(folder.source, found, folder.folder)
    raise MissingFile(
        uri,
        "tokenizer.json is missing. Set TOKENIZER_URI to its location, for instance hf://org/name of the base model.",
    )


def _generation(folders: Sequence[_Folder]) -> Mapping[str, Any] | None:
    """Return what the model's own generation_config.json says; None if it has none."""
    for folder in folders:
        if found := folder.find(GENERATION_CONFIG):
            return parse_json_object(folder.source.uri, found[0].name, folder.source.read(found[0]))
    return None
