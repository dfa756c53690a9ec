"""Discovery of an adapter: a folder as PEFT and Levanter write it, pinned to one version; no tensor is read."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from service.checkpoint.adapters.peft import CONFIG, AdapterConfig, read_adapter_config
from service.checkpoint.file_set import FileSet, OpenSource
from service.checkpoint.layout import STEP_MARKER, named
from service.errors import MalformedCheckpoint, MissingFile, RefusedAdapter
from service.storage.location import parse_location
from service.storage.objects import ObjectInfo

WEIGHTS = "adapter_model.safetensors"
PICKLED = "adapter_model.bin"
MAX_CONFIG_BYTES = 4 * 1024 * 1024
MAX_WEIGHTS_BYTES = 4 * 1024**3  # a rank of 64 in all linear layers of 70B parameters takes 3.3 GB in float32
_STEP = re.compile(rf"step-(\d+)/{re.escape(CONFIG)}")


@dataclass(frozen=True)
class AdapterFiles:
    """The files of an adapter in a listing."""

    step: int | None  # of a run, the newest; None if the listing is of the adapter's own folder
    files: tuple[ObjectInfo, ...]


def find_adapter(objects: Sequence[ObjectInfo]) -> AdapterFiles | None:
    """Return the adapter that a listing holds, or the newest of a run; None if it has no complete one."""
    steps = [int(match[1]) for info in objects if (match := _STEP.fullmatch(info.name))]
    for step in (None, *sorted(steps, reverse=True)):
        found = _files(objects, "" if step is None else f"step-{step}/")
        if len(found) == 2:
            return AdapterFiles(step, found)
    return None


def _files(objects: Sequence[ObjectInfo], folder: str = "") -> tuple[ObjectInfo, ...]:
    """Return the configuration and the tensors, pickled ones only where no others are there."""
    config = named(objects, [CONFIG], folder)
    return *config, *(named(objects, [WEIGHTS], folder) or named(objects, [PICKLED], folder))


@dataclass(frozen=True)
class LocatedAdapter:
    """The files of an adapter, and what its configuration says."""

    uri: str
    files: FileSet
    config: AdapterConfig

    @property
    def weights(self) -> ObjectInfo:
        """The file of its tensors."""
        return next(info for info in self.files.objects if info.name != CONFIG)


def locate_adapter(uri: str, open_source: OpenSource, variable: str = "ADAPTER_URI") -> LocatedAdapter:
    """Find an adapter; of a run's folder, the one of the newest step.

    Args:
        uri: the folder.
        open_source: opens a location; the caller knows the cache and the emulator.
        variable: the setting that names the folder, for messages.

    Raises:
        CheckpointError: there is no adapter, a file is missing, malformed or too large, or its kind is not served.
        SettingsError: the address is malformed.
    """
    source = open_source(parse_location(uri, variable))
    objects = source.list()
    complete = find_adapter(objects)
    if complete is not None and complete.step is not None:
        return locate_adapter(f"{source.uri.rstrip('/')}/step-{complete.step}", open_source, variable)
    found = _files(objects)
    _check_files(source.uri, objects, found)
    config_file = next(info for info in found if info.name == CONFIG)
    try:
        values = json.loads(source.read(config_file))
    except (ValueError, RecursionError) as error:
        raise MalformedCheckpoint(source.uri, CONFIG, "is not JSON.") from error
    if not isinstance(values, dict):
        raise MalformedCheckpoint(source.uri, CONFIG, "is not a JSON object.")
    return LocatedAdapter(source.uri, FileSet(source, found), read_adapter_config(source.uri, values))


def _check_files(uri: str, objects: Sequence[ObjectInfo], found: Sequence[ObjectInfo]) -> None:
    names, sizes = {info.name for info in objects}, {info.name: info.size_bytes for info in found}
    if CONFIG not in sizes:
        if any(name.rpartition("/")[2] == STEP_MARKER for name in names):
            raise MissingFile(
                uri,
                f"is a checkpoint of a Levanter run without {CONFIG}. Set peft_save_path in the configuration of "
                "`python -m levanter.main.lora_lm` and run it again: it resumes, and writes the adapter as a folder.",
            )
        raise MissingFile(uri, f"{CONFIG} is missing, so this is not an adapter of PEFT.")
    if len(found) < 2:
        raise MissingFile(uri, f"{WEIGHTS} is missing.")
    for name, limit in ((CONFIG, MAX_CONFIG_BYTES), (found[1].name, MAX_WEIGHTS_BYTES)):
        # Defends against T37.
        if sizes[name] > limit:
            raise RefusedAdapter(uri, name, "size", f"is {sizes[name]:,} bytes; the limit is {limit:,}")
