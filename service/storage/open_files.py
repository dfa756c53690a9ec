"""Files of a checkpoint, opened for a single read: from a bucket, with copies for the cache, or from local disk."""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from service.errors import AccessDenied, ObjectChanged, StorageFull, TransferFailed
from service.observability.progress import Progress, show_progress
from service.storage.cache.cache import (
    CachedSource,
    CacheUnusable,
    CheckpointCache,
    OpenEntry,
    PulledCheckpoint,
    private_cache,
)
from service.storage.fetch import fetch_files
from service.storage.objects import ObjectInfo, RangeSource
from service.storage.retry import RetryBudget, TransferLimits

logger = logging.getLogger(__name__)

# More readers than cores wait for one another and for the GIL, so half of the cores read: two get 11 GB/s from the page
# cache, eight 41. Large chunks take the GIL rarely, which matters because imports run at the same time.
FILE_LIMITS = TransferLimits(
    num_workers=min(8, max(2, (os.cpu_count() or 1) // 2)),
    slice_bytes=16 * 1024 * 1024,
    chunk_bytes=8 * 1024 * 1024,
)


@dataclass(frozen=True)
class OpenFile:
    """One file, its source, and the folder to copy it to, if any."""

    source: RangeSource
    info: ObjectInfo  # without a crc32c if the bytes are trusted
    copy_to: Path | None = None


@dataclass
class OpenFiles:
    """Open files and the limits on reading them."""

    files: Sequence[OpenFile]
    progress: Progress  # expects their bytes
    budget: RetryBudget
    release: Callable[[], None] = lambda: None  # lets the cache evict the files
    entry: OpenEntry | None = None  # receives the copies

    def cache_copies(self, file_sums: Mapping[str, str], disk_fault: Exception | None) -> None:
        """Complete the cache entry; a failing disk loses the entry but raises nothing.

        Args:
            file_sums: crc32c of each copy, by name.
            disk_fault: why a copy could not be written, if one failed.
        """
        if self.entry is None:
            return
        fault = disk_fault
        if fault is None:
            try:
                self.entry.add(file_sums)
                self.entry.complete()
            except (CacheUnusable, StorageFull, TransferFailed) as error:
                fault = error
        if fault is not None:
            self.entry.pulled.release()
            _warn_not_cached(self.entry.cache_root, fault)


@contextmanager
def open_bucket(
    bucket: CachedSource,
    objects: Sequence[ObjectInfo],
    chosen: Sequence[ObjectInfo],
    *,
    cache: CheckpointCache | None,
    progress: Progress,
    cancelled: threading.Event | None,
) -> Iterator[OpenFiles]:
    """Open files of a bucket, or their cached copies.

    Args:
        bucket: the location of the objects.
        objects: all files of the cache entry; the ones not in `chosen` are downloaded before this returns.
        chosen: the files to open.
        cache: receives copies of missing files; None writes nothing except files that have to be unpacked.
        progress: counts the bytes.
        cancelled: set by the caller to stop reading.

    Raises:
        CheckpointError: see `CheckpointCache.pull`; a full or failing disk is only logged.
    """
    if any(info.is_gzipped for info in chosen):
        pulled = (cache or private_cache()).pull(bucket, objects, progress, cancelled)
        with open_pulled(bucket.uri, pulled, chosen, Progress(), cancelled) as opened:  # counted by the pull
            yield opened
        return
    entry, budget = None, RetryBudget(bucket.limits, cancelled)
    if cache is not None:
        try:
            entry = _open_entry(cache, bucket, objects, chosen=chosen, progress=progress, budget=budget)
        except (CacheUnusable, StorageFull) as error:
            # A full or failing disk must not prevent a model from being served.
            _warn_not_cached(cache.root, error)
            budget = RetryBudget(bucket.limits, cancelled)
    if entry is not None and not entry.missing:
        entry.close()
        with open_pulled(bucket.uri, entry.pulled, chosen, progress, cancelled) as opened:
            yield opened
        return
    with show_progress(progress, bucket.uri):
        if entry is None:
            progress.expect(sum(info.size_bytes for info in chosen))
            yield OpenFiles([OpenFile(bucket, info) for info in chosen], progress, budget)
            return
        with entry, FolderRanges(bucket.uri, entry.folder) as present:
            files = [
                # An earlier, interrupted pull may have left some of them.
                OpenFile(bucket, info, entry.folder) if info in entry.missing else OpenFile(present, info)
                for info in chosen
            ]
            yield OpenFiles(files, progress, budget, entry.pulled.release, entry)


@contextmanager
def open_pulled(
    uri: str,
    pulled: PulledCheckpoint,
    chosen: Sequence[ObjectInfo],
    progress: Progress,
    cancelled: threading.Event | None,
) -> Iterator[OpenFiles]:
    """Open local files, which are trusted: a pull has verified them, or they belong to the user.

    Args:
        uri: the checkpoint's address, for error messages.
        pulled: the files, released if the body fails.
        chosen: the files to open.
        progress: counts the bytes.
        cancelled: set by the caller to stop reading.
    """
    # A file that was stored with gzip is larger than its object.
    sizes = [(pulled.path / info.name).stat().st_size if info.is_gzipped else info.size_bytes for info in chosen]
    progress.expect(sum(sizes))
    try:
        with FolderRanges(uri, pulled.path) as folder:
            infos = [replace(info, crc32c="", size_bytes=size) for info, size in zip(chosen, sizes, strict=True)]
            files = [OpenFile(folder, info) for info in infos]
            yield OpenFiles(files, progress, RetryBudget(FILE_LIMITS, cancelled), pulled.release)
    except BaseException:
        pulled.release()
        raise


class FolderRanges:
    """Ranged reads of one folder's files, each kept open from its first read until `close`.

    The files are not mapped: mapped pages count as memory of this process, and each costs a page fault.
    """

    def __init__(self, uri: str, folder: Path) -> None:
        """Name the folder; nothing is opened yet.

        Args:
            uri: the checkpoint's address, for error messages.
            folder: the folder that object names are relative to.
        """
        self.uri = uri
        self._folder = folder
        self._lock = threading.Lock()
        self._descriptors: dict[str, int] = {}

    def __enter__(self) -> "FolderRanges":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            for descriptor in self._descriptors.values():
                os.close(descriptor)
            self._descriptors.clear()

    @contextmanager
    def open_range(self, info: ObjectInfo, start: int, num_bytes: int, budget: RetryBudget) -> Iterator["_FileRange"]:
        yield _FileRange(self, info, start, budget)

    def read_at(self, info: ObjectInfo, start: int, buffer: memoryview) -> int:
        """Read some bytes of a file from byte `start`; return their number.

        Raises:
            ObjectChanged: the file is gone or has become shorter.
            AccessDenied: the file may not be read.
            TransferFailed: the disk failed.
        """
        try:
            num_bytes = os.preadv(self._descriptor(info), [buffer], start)
        except FileNotFoundError as error:
            raise ObjectChanged(self.uri, info.name, info.generation) from error
        except PermissionError as error:
            raise AccessDenied(self.uri, f"{info.name} may not be read by this user.") from error
        except OSError as error:
            raise TransferFailed(self.uri, info.name, f"cannot be read: {error.strerror}") from error
        if num_bytes == 0:
            raise ObjectChanged(self.uri, info.name, info.generation)
        return num_bytes

    def _descriptor(self, info: ObjectInfo) -> int:
        with self._lock:
            if info.name not in self._descriptors:
                self._descriptors[info.name] = os.open(self._folder / info.name, os.O_RDONLY | os.O_CLOEXEC)
            return self._descriptors[info.name]


class _FileRange:
    """A range of one file."""

    def __init__(self, files: FolderRanges, info: ObjectInfo, start: int, budget: RetryBudget) -> None:
        self._files, self._info, self._next, self._budget = files, info, start, budget

    def readinto(self, buffer: memoryview) -> None:
        filled = 0
        while filled < len(buffer):
            self._budget.check(self._files.uri, self._info.name)
            num_bytes = self._files.read_at(self._info, self._next, buffer[filled:])
            filled += num_bytes
            self._next += num_bytes


def _open_entry(
    cache: CheckpointCache,
    bucket: CachedSource,
    objects: Sequence[ObjectInfo],
    *,
    chosen: Sequence[ObjectInfo],
    progress: Progress,
    budget: RetryBudget,
) -> OpenEntry:
    """Open the cache entry, fetch missing files that are not in `chosen`, and complete the entry if none remain."""
    entry = cache.open_entry(bucket, objects, budget)
    try:
        progress.expect(entry.missing_bytes)
        others = [info for info in entry.missing if info not in chosen]
        entry.add(fetch_files(bucket, others, entry.folder, progress, budget))
        if not entry.missing:
            entry.complete()
    except BaseException:
        entry.abandon()
        raise
    return entry


def _warn_not_cached(cache_root: Path, error: Exception) -> None:
    facts = {"cache": str(cache_root), "reason": str(error)}
    logger.warning("the checkpoint cannot be cached; streaming its weights without a copy", extra=facts)
