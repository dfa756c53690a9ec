"""One interface to a checkpoint in a bucket, on the Hub or in a folder.

`open_source(parse_location(uri), ...)`, then `source.list()`, `source.read(info)` for a configuration, and
`source.open_files(...)` to stream large files, or `source.pull(...)` to copy them to this machine.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, runtime_checkable

from service.observability.progress import Progress
from service.storage.cache.cache import CheckpointCache, PulledCheckpoint
from service.storage.local import LocalSource
from service.storage.location import GcsLocation, HubLocation, Location
from service.storage.objects import ObjectInfo, RangeSource
from service.storage.open_files import OpenFiles
from service.storage.retry import TransferLimits


@runtime_checkable
class Source(Protocol):
    """A location that contains a checkpoint."""

    uri: str

    def list(self) -> tuple[ObjectInfo, ...]:
        """List every file, each pinned to one version."""
        ...

    def read(self, info: ObjectInfo) -> bytes:
        """Read a small file."""
        ...

    def pull(
        self,
        objects: Sequence[ObjectInfo],
        cache: CheckpointCache,
        progress: Progress,
        cancelled: threading.Event | None = None,
    ) -> PulledCheckpoint:
        """Copy files to this machine and hold them; return once all are complete and verified."""
        ...

    def open_files(
        self,
        objects: Sequence[ObjectInfo],
        chosen: Sequence[ObjectInfo],
        *,
        cache: CheckpointCache | None,
        progress: Progress,
        cancelled: threading.Event | None = None,
    ) -> AbstractContextManager[OpenFiles]:
        """Open files for a single read, without waiting for their bytes where possible.

        Args:
            objects: all files of the cache entry.
            chosen: the files to read.
            cache: receives copies of all downloaded files; None keeps nothing.
            progress: counts the bytes.
            cancelled: set by the caller to stop reading.
        """
        ...

    def open_ranges(self) -> AbstractContextManager[RangeSource]:
        """Open the files for reads of short ranges, such as headers, before they are pulled; nothing is verified."""
        ...

    def is_on_this_machine(self, objects: Sequence[ObjectInfo], cache: CheckpointCache | None) -> bool:
        """Return whether all of these files can be read without a transfer."""
        ...

    def close(self) -> None: ...


def open_source(
    location: Location,
    *,
    cache_root: Path,
    emulator_host: str | None = None,
    limits: TransferLimits | None = None,
    generations: Mapping[str, int] | None = None,
) -> Source:
    """Open a location; nothing is read yet.

    Args:
        location: from `parse_location`.
        cache_root: LOCAL_MODEL_CACHE, which also contains the Hub's cache.
        emulator_host: STORAGE_EMULATOR_HOST.
        limits: limits on listing, reading and pulling; defaults if omitted.
        generations: generations to read instead of the live ones, by name of a bucket's object.

    Raises:
        AccessDenied: the location is a bucket and there are no credentials.
        SettingsError: the location is on the Hub and huggingface_hub is not installed.
    """
    chosen_limits = limits or TransferLimits()
    # Imports only what the address needs, for a fast start.
    if isinstance(location, GcsLocation):
        from service.storage.gcs.read import GcsSource

        return GcsSource(location, emulator_host=emulator_host, limits=chosen_limits, generations=generations)
    if isinstance(location, HubLocation):
        from service.storage.hub import HubSource

        return HubSource(location, cache_root=cache_root, limits=chosen_limits)
    return LocalSource(location)
