"""`levserve convert`: convert a checkpoint with pickled weights to safetensors, or merge an adapter into a checkpoint.

Weights are downloaded and verified, then written in shards with Hugging Face's names, together with the configuration
and the tokenizer. `config.json` is written last, so a folder that contains it is complete.
"""

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from io import BufferedReader
from pathlib import Path

from huggingface_hub import split_state_dict_into_shards_factory

from service.checkpoint.adapters.read import read_updates
from service.checkpoint.discover import locate
from service.checkpoint.file_set import OpenSource
from service.checkpoint.layout import INDEX, PICKLED_INDEX, SnapshotLayout, detect_layout
from service.checkpoint.limits import LoadLimits
from service.checkpoint.weight_files import choose_weights
from service.errors import MalformedCheckpoint, SettingsError
from service.models.weight_spec import WeightSpec
from service.observability.progress import Progress
from service.settings import Settings
from service.start.prefetch import weight_specs
from service.storage.cache.cache import CheckpointCache
from service.storage.location import Location, parse_location
from service.storage.objects import ObjectInfo
from service.storage.open_files import OpenFile, OpenFiles, open_pulled
from service.storage.retry import RetryBudget, TransferLimits
from service.storage.source import Source, open_source
from service.storage.store import ObjectStore, open_store
from service.weights.headers import merged, read_headers
from service.weights.low_rank import Update
from service.weights.names import resolve
from service.weights.safetensors import WIDE_DTYPES, TensorEntry
from service.weights.safetensors_file import SafetensorsFile, tensor_bytes
from service.weights.stacked_experts import single_names

logger = logging.getLogger(__name__)

COPIED = ("*.json", "*.jinja", "*.model", "*.txt")
LAST = "config.json"
MAX_SHARD_BYTES = 5_000_000_000  # as Hugging Face writes them
NUM_WRITERS = 4
READ_BYTES = 8 * 1024 * 1024
MAX_GROWTH = 2  # shared tensors are written separately; a tied embedding doubles the size of a small model

type FileTensors = dict[str, tuple[OpenFile, TensorEntry]]
type Updates = Mapping[str, Update]  # by the name of the tensor in the files, in the layout of the checkpoint


@dataclass(frozen=True)
class _Adapter:
    """What an adapter adds to the tensors of a model."""

    specs: Sequence[WeightSpec]
    updates: Mapping[str, Update]  # by the model's name of the tensor


def convert(source_uri: str, target_uri: str, settings: Settings, adapter_uri: str | None = None) -> int:
    """Convert a checkpoint and return the exit code.

    Args:
        source_uri: `gs://bucket/prefix`, `hf://org/name[/folder][@revision]` or a folder.
        target_uri: `gs://bucket/prefix` or a folder, without unrelated files.
        settings: the settings of the cache and the emulator.
        adapter_uri: an adapter to merge into the weights, which need not be pickled then; None for none.

    Raises:
        SettingsError: an address is malformed, or the target contains other files.
        CheckpointError: the source has no pickled weights or cannot be read, the adapter is of another model, or the
            target cannot be written.
    """
    store = open_store(target_uri, "TARGET", emulator_host=settings.storage_emulator_host)
    location = parse_location(source_uri, "SOURCE")

    def open_location(location: Location) -> Source:
        return open_source(
            location,
            cache_root=settings.local_model_cache,
            emulator_host=settings.storage_emulator_host,
            limits=TransferLimits(deadline_s=settings.pull_timeout),
        )

    cache = CheckpointCache(settings.local_model_cache, max_checkpoints=settings.max_cached_models)
    adapter = None if adapter_uri is None else _adapter(source_uri, adapter_uri, open_location, settings, cache)
    source = open_location(location)
    with closing(source):
        objects = source.list()
        weights = _weights(source, objects, may_be_safe=adapter_uri is not None)
        copied = [info for info in objects if any(fnmatch(info.name, pattern) for pattern in COPIED)]
        copied = [info for info in copied if not info.name.endswith((PICKLED_INDEX, INDEX))]
        pulled = source.pull([*weights, *copied], cache, Progress())
        with open_pulled(source.uri, pulled, weights, Progress(), None) as opened:
            shards = dict(_shards(source.uri, opened))
            _check_target(store, {*shards, *(info.name for info in copied), INDEX})
            updates = {} if adapter is None else _by_stored_name(source.uri, adapter, shards)
            _write(store, shards, opened, [(info.name, pulled.path / info.name) for info in copied], updates)
    logger.info("conversion complete", extra={"uri": store.uri, "files": len(shards)})
    return 0


def _adapter(
    source_uri: str, adapter_uri: str, open_location: OpenSource, settings: Settings, cache: CheckpointCache
) -> _Adapter:
    """Return an adapter's updates of a checkpoint's tensors."""
    located = locate(source_uri, open_location, adapter_uri=adapter_uri)
    if not isinstance(located.layout, SnapshotLayout):
        reason = f"{located.uri} is a Levanter run. Export it to Hugging Face's format, or serve it with ADAPTER_URI."
        raise SettingsError("SOURCE", reason)
    assert located.adapter is not None, "it was asked for"
    specs = weight_specs(settings, located)
    limits = LoadLimits(cache, Progress(), settings.stream_staging_bytes)
    return _Adapter(specs, read_updates(located.adapter, specs, limits))


def _by_stored_name(uri: str, adapter: _Adapter, shards: Mapping[str, FileTensors]) -> Updates:
    """Return updates by the names in the files, those of copies too.

    Raises:
        MalformedCheckpoint: a tensor to update is not stored as it is: it is quantized, or stacked with others.
    """
    stored = {
        name: entry for file, tensors in shards.items() if "/" not in file for name, (_, entry) in tensors.items()
    }
    model = {source.name: source for spec in adapter.specs for source in spec.sources}
    names = single_names(stored, model)
    tensors = {tensor.name for spec in adapter.specs for source in spec.sources for tensor in source.stored}
    found = resolve(uri, adapter.specs, {"": names}, optional=tensors, zeros=frozenset)
    of_model = [*found.tensors.items(), *found.copies]
    updates: dict[str, Update] = {}
    for name, update in adapter.updates.items():
        places = [place.name for of, place in of_model if of == name]
        wide = [place for place in places if place in stored and stored[place].dtype_name in WIDE_DTYPES]
        if not places or wide != places:
            is_stacked = any(place not in stored for place in places)
            reason = "is stacked with others" if is_stacked else "is quantized"
            remedy = "save it with save_pretrained()" if is_stacked else "merge into the unquantized checkpoint"
            raise MalformedCheckpoint(uri, name, f"{reason}, so nothing can be added to it here; {remedy}.")
        updates |= dict.fromkeys(places, update.transposed if model[name].is_transposed else update)
    return updates


def _weights(source: Source, objects: Sequence[ObjectInfo], *, may_be_safe: bool) -> list[ObjectInfo]:
    """Return the files of weights, including modules after the model."""
    layout = detect_layout(source.uri, objects)
    if not isinstance(layout, SnapshotLayout) or not (layout.is_pickled or may_be_safe):
        raise SettingsError("SOURCE", f"{source.uri} has no pytorch_model.bin; there is nothing to convert.")
    of_module = "/pytorch_model.bin" if layout.is_pickled else "/model.safetensors"
    modules = [info for info in objects if info.name.count("/") == 1 and info.name.endswith(of_module)]
    return [*choose_weights(source, objects, layout)[0].weights, *modules]


def _shards(uri: str, opened: OpenFiles) -> Iterator[tuple[str, FileTensors]]:
    """Yield each output file's name and tensors; folders of the source are preserved."""
    headers = read_headers(opened.files, opened.budget)
    entries = merged(uri, [header.entries for header in headers])
    files = {name: header.file for header in headers for name in header.entries}
    growth = sum(map(tensor_bytes, entries.values())) / sum(header.file.info.size_bytes for header in headers)
    if not entries or growth > MAX_GROWTH:
        reason = f"its {len(entries)} tensors share elements, so the output would be {growth:.0f} times as large."
        raise MalformedCheckpoint(uri, headers[0].file.info.name, reason if entries else "it has no tensors.")
    for folder in sorted({file.info.name.rpartition("/")[0] for file in files.values()}):
        prefix = f"{folder}/" if folder else ""
        # Headers prefix tensor names with the folder; the files do not.
        inside: FileTensors = {
            name.removeprefix(prefix): (files[name], entry)
            for name, entry in entries.items()
            if files[name].info.name.rpartition("/")[0] == folder
        }
        split = split_state_dict_into_shards_factory(
            inside,
            get_storage_size=lambda tensor: tensor_bytes(tensor[1]),
            filename_pattern="model{suffix}.safetensors",
            max_shard_size=MAX_SHARD_BYTES,
        )
        for file, names in split.filename_to_tensors.items():
            yield prefix + file, {name: inside[name] for name in names}


def _check_target(store: ObjectStore, written: set[str]) -> None:
    present = store.list("")
    others = sorted(present.keys() - written)
    if LAST in present or others:
        content = "a complete checkpoint" if LAST in present else f"{others[0]!r} of another origin"
        raise SettingsError("TARGET", f"{store.uri} contains {content}. Convert to a new folder.")


def _write(
    store: ObjectStore,
    shards: Mapping[str, FileTensors],
    opened: OpenFiles,
    copied: Sequence[tuple[str, Path]],
    updates: Updates,
) -> None:
    # Reads wait for writes to the target, which has its own limits, so they need no deadline.
    budget = RetryBudget(replace(opened.budget.limits, deadline_s=math.inf))

    def write(file: str) -> None:
        of_file = {name: updates[name] for name in shards[file] if name in updates and "/" not in file}
        stream = SafetensorsFile(shards[file], budget, of_file)
        with closing(BufferedReader(stream, READ_BYTES)) as content:
            store.write(file, content)
        logger.info("wrote", extra={"file": file, "tensors": len(shards[file]), "bytes": stream.size_bytes})

    with ThreadPoolExecutor(NUM_WRITERS, thread_name_prefix="convert") as pool:
        list(pool.map(write, shards))
    top = {file: tensors for file, tensors in shards.items() if "/" not in file}
    if len(top) > 1:
        total_bytes = sum(tensor_bytes(entry) for tensors in top.values() for _, entry in tensors.values())
        index = {
            "metadata": {"total_size": total_bytes},
            "weight_map": {name: file for file, tensors in top.items() for name in tensors},
        }
        store.write(INDEX, json.dumps(index, indent=2, sort_keys=True).encode() + b"\n")
    for name, path in sorted(copied, key=lambda item: item[0] == LAST):
        store.write(name, path.read_bytes())
