"""Discovery of models in a folder or bucket from a single LIST, without reading files.

A model is a folder with a checkpoint or an adapter, on the first level or, below a folder that is not a model, on the
second (`org/name`).
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from service.catalogue.entry import ListedModel, name_fault
from service.checkpoint.adapters.locate import find_adapter
from service.checkpoint.layout import LevanterLayout, detect_layout
from service.checkpoint.model_config import CONFIG_JSON
from service.errors import CheckpointError, CheckpointNotFound, HostileName, MissingFile
from service.storage.gcs.read import GcsSource
from service.storage.local import LocalSource
from service.storage.location import GcsLocation, LocalLocation
from service.storage.objects import ObjectInfo
from service.storage.retry import TransferLimits

logger = logging.getLogger(__name__)


def list_models(location: GcsLocation | LocalLocation, *, emulator_host: str | None) -> tuple[ListedModel, ...]:
    """List a catalogue and return its models sorted by name.

    Raises:
        AccessDenied, TransferFailed: the listing failed.
    """
    try:
        return models_of(location.uri, _objects(location, emulator_host))
    except CheckpointNotFound:  # no object
        logger.warning("the catalogue is empty", extra={"uri": location.uri})
        return ()


def newest_step(location: GcsLocation | LocalLocation, *, emulator_host: str | None) -> ListedModel:
    """List a Levanter run and return its newest complete step, named by the run's address.

    Raises:
        CheckpointError: there is no complete step, or the listing failed.
    """
    objects = _objects(location, emulator_host)
    layout = detect_layout(location.uri, objects)
    if not isinstance(layout, LevanterLayout) or layout.step is None or not layout.folder:
        raise MissingFile(location.uri, "it has a 'pin', but is not a Levanter run with a folder step-N")
    return ListedModel(location.uri, _version(layout.weights), layout.step)


def models_of(uri: str, objects: Iterable[ObjectInfo]) -> tuple[ListedModel, ...]:
    """Return the models among the objects of a listing."""
    models: list[ListedModel] = []
    for folder, inside in _by_folder(objects).items():
        if (model := _model(uri, folder, inside)) is not None:
            models.append(model)
            continue
        nested = (_model(uri, f"{folder}/{below}", files) for below, files in _by_folder(inside).items())
        models += [model for model in nested if model is not None]
    return tuple(sorted(models, key=lambda model: model.name))


def _objects(location: GcsLocation | LocalLocation, emulator_host: str | None) -> Sequence[ObjectInfo]:
    if isinstance(location, LocalLocation):
        return LocalSource(LocalLocation(Path(location.path))).list()
    with closing(GcsSource(location, emulator_host=emulator_host, limits=TransferLimits())) as source:
        return source.list(on_hostile=_skip)


def _skip(error: HostileName) -> None:
    logger.warning("skipping an object of the catalogue", extra={"reason": str(error)})


def _by_folder(objects: Iterable[ObjectInfo]) -> dict[str, list[ObjectInfo]]:
    """Group objects by top-level folder, with names relative to it, dropping objects outside of folders."""
    folders: dict[str, list[ObjectInfo]] = {}
    for info in objects:
        folder, slash, name = info.name.partition("/")
        if slash and not folder.startswith("."):
            folders.setdefault(folder, []).append(replace(info, name=name))
    return folders


def _model(uri: str, folder: str, objects: Sequence[ObjectInfo]) -> ListedModel | None:
    top = [info for info in objects if "/" not in info.name]
    has_config = any(info.name == CONFIG_JSON for info in top)
    adapter = None if has_config else find_adapter(objects)
    try:
        layout = None if adapter is not None else detect_layout(f"{uri}/{folder}", objects)
    except CheckpointError:
        return None
    if adapter is not None:
        files, step = set(adapter.files), adapter.step
    elif isinstance(layout, LevanterLayout):
        files, step = {*layout.weights, *top}, layout.step
    elif has_config:
        files, step = set(top), None
    else:  # the upload is incomplete
        return None
    if (fault := name_fault(folder)) is not None:
        logger.warning("skipping a folder of the catalogue", extra={"folder": folder, "reason": fault})
        return None
    return ListedModel(folder, _version(files), step, is_adapter=adapter is not None)


def _version(files: Iterable[ObjectInfo]) -> str:
    listed = sorted([info.name, info.generation, info.size_bytes, info.crc32c] for info in files)
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:16]
