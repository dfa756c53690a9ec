"""Converted Levanter checkpoints, stored next to bundles: written by `levserve prewarm`, found by later starts."""

import contextlib
import logging
import shutil
from pathlib import Path

from service.bundles.location import shared_location
from service.checkpoint import conversion
from service.checkpoint.discover import LocatedCheckpoint
from service.checkpoint.file_set import OpenSource
from service.checkpoint.layout import CONVERSION_MARKER
from service.errors import CheckpointError
from service.observability.progress import Progress
from service.settings import Settings
from service.storage.cache.cache import CheckpointCache
from service.storage.location import GcsLocation, LocalLocation

logger = logging.getLogger(__name__)


def find_conversion(settings: Settings, uri: str, open_source: OpenSource) -> str | None:
    """Return the address of a checkpoint's conversion, or None if it has none or needs none.

    Raises:
        CheckpointError: there is no checkpoint.
    """
    local, shared = _local(settings), _shared(settings, uri)
    if shared is None and not local.is_dir():
        return None  # no conversion can exist, so skip the LIST
    name = conversion.conversion_name(uri, open_source, _sources(settings))
    for place in (str(local), shared.uri if shared is not None else None):
        if name is not None and place is not None:
            try:
                if conversion.is_conversion(f"{place}/{name}", open_source):
                    return f"{place}/{name}"
            except CheckpointError as error:
                logger.warning("the lookup of a conversion failed", extra={"place": place, "reason": str(error)})
    return None


def store_conversion(settings: Settings, located: LocatedCheckpoint, uri: str, open_source: OpenSource) -> list[str]:
    """Convert a Levanter checkpoint, store it locally and in the shared location, and return where it was stored.

    Does nothing if the shared location has it: this machine may be too small to convert it.

    Raises:
        CheckpointError: the weights could not be read, or the shared location cannot be written.
        OSError: a folder cannot be written.
    """
    from service.bundles.folder import BundleFolder

    name = conversion.conversion_name(uri, open_source, _sources(settings))
    if name is None:
        return []
    cache = CheckpointCache(settings.local_model_cache, max_checkpoints=settings.max_cached_checkpoints)
    local, shared = _local(settings), _shared(settings, uri)
    if shared is not None and conversion.is_conversion(f"{shared.uri}/{name}", open_source):
        return []
    place = BundleFolder(local, max_bundles=settings.max_cached_checkpoints)
    stored = []
    if place.write_with(name, lambda part: conversion.write_conversion(part, located, cache, Progress())):
        stored.append(place.uri)
    if isinstance(shared, GcsLocation):
        from service.bundles.bucket import BundleBucket

        bucket = BundleBucket(shared, emulator_host=settings.storage_emulator_host)
        with contextlib.closing(bucket):
            if bucket.write_folder(name, local / name, CONVERSION_MARKER):
                stored.append(shared.uri)
    elif shared is not None and BundleFolder(shared.path).write_with(name, lambda part: _copy(local / name, part)):
        stored.append(shared.uri)
    return stored


def _copy(folder: Path, part: Path) -> None:
    shutil.copytree(folder, part, dirs_exist_ok=True)


def _shared(settings: Settings, uri: str) -> GcsLocation | LocalLocation | None:
    match shared_location(settings.bundle_uri, uri):
        case GcsLocation(bucket, prefix):
            return GcsLocation(bucket, f"{prefix}/{conversion.FOLDER}".lstrip("/"))
        case LocalLocation(path):
            return LocalLocation(path / conversion.FOLDER)
        case None:
            return None


def _local(settings: Settings) -> Path:
    return settings.local_model_cache.expanduser().absolute() / conversion.FOLDER


def _sources(settings: Settings) -> list[str | None]:
    return [settings.model_config_uri, settings.tokenizer_uri]
