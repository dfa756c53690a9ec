"""Converted Levanter checkpoints, stored next to bundles: written by `levserve prewarm`, found by later starts."""

import contextlib
import logging
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from service.bundles.folder import MAX_BUNDLES
from service.bundles.location import shared_location
from service.checkpoint import conversion
from service.checkpoint.discover import LocatedCheckpoint
from service.checkpoint.file_set import OpenSource
from service.checkpoint.layout import CONVERSION_MARKER
from service.errors import CheckpointError
from service.observability.progress import Progress
from service.settings import Settings
from service.storage.cache.cache import CheckpointCache
from service.storage.entries import Entries, FolderEntries
from service.storage.files import part_path
from service.storage.location import LocalLocation
from service.storage.objects import PART_SUFFIX
from service.storage.store import open_store

logger = logging.getLogger(__name__)


def find_conversion(settings: Settings, uri: str, open_source: OpenSource) -> str | None:
    """Return the address of a checkpoint's conversion, or None if it has none or needs none.

    Raises:
        CheckpointError: there is no checkpoint.
    """
    with ExitStack() as opened:
        local, *others = _places(settings, uri, opened)
        if not others and not local.path.is_dir():
            return None  # no conversion can exist, so skip the LIST
        name = conversion.conversion_name(uri, open_source, _sources(settings))
        for place in (local, *others):
            try:
                if name is not None and place.holds(name):
                    return f"{place.uri}/{name}"
            except (CheckpointError, OSError) as error:
                logger.warning("the lookup of a conversion failed", extra={"place": place.uri, "reason": str(error)})
    return None


def store_conversion(settings: Settings, located: LocatedCheckpoint, uri: str, open_source: OpenSource) -> list[str]:
    """Convert a Levanter checkpoint, store it locally and in the shared location, and return where it was stored.

    Does nothing if the shared location has it: this machine may be too small to convert it.

    Raises:
        CheckpointError: the weights could not be read, or the shared location cannot be written.
        OSError: a folder cannot be written.
    """
    name = conversion.conversion_name(uri, open_source, _sources(settings))
    if name is None:
        return []
    with ExitStack() as opened:
        local, *others = _places(settings, uri, opened)
        if any(place.holds(name) for place in others):
            return []
        folder = local.path / name
        if not local.holds(name):
            folder = opened.enter_context(_temporary(folder))
            cache = CheckpointCache(settings.local_model_cache, max_checkpoints=settings.max_cached_checkpoints)
            conversion.write_conversion(folder, located, cache, Progress())
        files = {path.name: path for path in folder.iterdir()}
        return [place.uri for place in (local, *others) if place.write(name, files)]


@contextmanager
def _temporary(final: Path) -> Iterator[Path]:
    """Make a folder on the file system of `final`, so that its files can be linked."""
    part = part_path(final)
    part.mkdir(mode=0o700, parents=True)
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _places(settings: Settings, uri: str, opened: ExitStack) -> tuple[FolderEntries, *tuple[Entries, ...]]:
    """Return this machine's place and, if there is one, the shared one."""
    path = settings.local_model_cache.expanduser().absolute() / conversion.FOLDER
    local = _folder(path, settings.max_cached_checkpoints)
    shared = shared_location(settings.bundle_uri, uri)
    if shared is None:
        return (local,)
    if isinstance(shared, LocalLocation):
        return local, _folder(shared.path / conversion.FOLDER, MAX_BUNDLES)
    emulator_host = settings.storage_emulator_host
    store = open_store(f"{shared.uri}/{conversion.FOLDER}", "BUNDLE_URI", emulator_host=emulator_host)
    return local, opened.enter_context(contextlib.closing(Entries(store, CONVERSION_MARKER)))


def _folder(path: Path, max_entries: int) -> FolderEntries:
    return FolderEntries(path, CONVERSION_MARKER, max_entries=max_entries, leftovers=f".*{PART_SUFFIX}")


def _sources(settings: Settings) -> list[str | None]:
    return [settings.model_config_uri, settings.tokenizer_uri]
