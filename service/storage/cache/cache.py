"""The local cache of pulled checkpoints: one folder per version, visible once complete, shared by processes.

    LOCAL_MODEL_CACHE/checkpoints/
      my-model-3f2a…/          the files, and COMPLETE.json, which is written last
      my-model-3f2a….lock      held exclusively while it is pulled or checked
      my-model-3f2a….use       shared while it is served
      my-model-3f2a….corrupt/  files whose bytes changed on disk

The name contains a digest of the listing, so a new version of any object gets a new folder and files are never modified
in place. A killed pull leaves whole files, which the next pull checksums and reuses.
"""

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from service.errors import CheckpointError, StorageFull, TransferFailed
from service.observability.progress import Progress, show_progress
from service.storage.cache.entry import CacheEntry, make_room
from service.storage.fetch import fetch_files
from service.storage.files import CANNOT_LOCK, DISK_FULL, FileLock, free_bytes, private_folder, wait_for_lock
from service.storage.objects import ObjectInfo, RangeSource, check_names_together
from service.storage.retry import RetryBudget, TransferLimits

logger = logging.getLogger(__name__)

# Left free for the record, the folders and other writers to the same disk.
SPARE_BYTES = 1024 * 1024
LOCK_POLL_S = 0.1
LOCK_LOG_INTERVAL_S = 10.0


@runtime_checkable
class CachedSource(RangeSource, Protocol):
    """A source whose objects are copied into the cache."""

    limits: TransferLimits


@dataclass(frozen=True, slots=True)
class PulledCheckpoint:
    """Local files of a checkpoint, protected from eviction until `release` or the end of the process."""

    path: Path
    objects: tuple[ObjectInfo, ...]
    release: Callable[[], None] = lambda: None


class CacheUnusable(Exception):
    """The cache lacks the checkpoint and can be neither written nor locked."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class OpenEntry:
    """A checkpoint's folder, locked until `close` so that the missing files can be added."""

    def __init__(
        self,
        source: RangeSource,
        entry: CacheEntry,
        pulled: PulledCheckpoint,
        *,
        file_sums: Mapping[str, str],
        lock: FileLock | None,
        is_complete: bool = False,
    ) -> None:
        """Own the lock.

        Args:
            source: the location of the objects.
            entry: the destination of the files.
            pulled: the held files; `abandon` releases them, `close` does not.
            file_sums: crc32c of each file already present, by name.
            lock: the pull lock; None for a cache that cannot be locked.
            is_complete: whether the entry is already visible.
        """
        self.folder, self.cache_root = entry.folder, entry.root.parent
        self.pulled = pulled
        self._source, self._entry, self._lock = source, entry, lock
        self._file_sums = dict(file_sums)
        self._is_complete = is_complete

    def __enter__(self) -> "OpenEntry":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close() if kind is None else self.abandon()

    @property
    def missing(self) -> tuple[ObjectInfo, ...]:
        return tuple(info for info in self.pulled.objects if info.name not in self._file_sums)

    @property
    def missing_bytes(self) -> int:
        return sum(info.size_bytes for info in self.missing)

    def add(self, file_sums: Mapping[str, str]) -> None:
        """Record files committed to the folder, with the crc32c of each by name."""
        self._file_sums |= file_sums

    def complete(self) -> None:
        """Make the entry visible once no file is missing. Idempotent.

        Raises:
            CacheUnusable: the file system cannot store the entry.
            StorageFull, TransferFailed: the record cannot be written.
        """
        if self._is_complete:
            return
        try:
            self._entry.complete(self._source.uri, self.pulled.objects, self._file_sums)
        except OSError as error:
            if error.errno in CANNOT_LOCK:
                raise CacheUnusable(os.strerror(error.errno)) from error
            raise _disk_error(error, self._source.uri, self.pulled.objects, self._entry.root) from error
        self._is_complete = True

    def close(self) -> None:
        """Release the pull lock but keep `pulled` held."""
        if self._lock is not None:
            self._lock.release()

    def abandon(self) -> None:
        """Release the pull lock and the files."""
        self.pulled.release()
        self.close()


class CheckpointCache:
    """A folder of pulled checkpoints that several processes may use at once."""

    def __init__(self, root: Path, *, max_checkpoints: int, verify_fully: bool = False) -> None:
        """Name a cache; nothing is written yet.

        Args:
            root: LOCAL_MODEL_CACHE.
            max_checkpoints: MAX_CACHED_CHECKPOINTS.
            verify_fully: checksum every file at every start instead of only those whose `lstat` changed.
        """
        self.root = root.expanduser().absolute()
        self._max_checkpoints = max_checkpoints
        self._verify_fully = verify_fully

    def pull(
        self,
        source: CachedSource,
        objects: Sequence[ObjectInfo],
        progress: Progress,
        cancelled: threading.Event | None = None,
    ) -> PulledCheckpoint:
        """Copy a bucket's objects into the cache if they are missing, and hold them.

        A read-only cache is still read; missing objects go to a private folder that is deleted with the process.

        Raises:
            HostileName: two names cannot be files of one folder; nothing was downloaded.
            StorageFull: the objects do not fit.
            CorruptObject, ObjectChanged, AccessDenied, TransferFailed: see `fetch_files`.
        """
        budget = RetryBudget(source.limits, cancelled)
        try:
            return self._pull(source, objects, progress, budget)
        except CacheUnusable as error:
            private = private_cache()
            facts = {"cache": str(self.root), "reason": error.reason, "private_folder": str(private.root)}
            logger.warning("the cache cannot be written or locked; pulling into a private folder", extra=facts)
        try:
            return private._pull(source, objects, progress, budget)
        except BaseException:
            shutil.rmtree(private.root, ignore_errors=True)
            raise

    def find(self, source: CachedSource, objects: Sequence[ObjectInfo]) -> PulledCheckpoint | None:
        """Hold objects if they are cached and unchanged by `lstat`; never wait for another process."""
        entry = CacheEntry.of(self._folder, source.uri, objects)
        lock = entry.try_hold_unchanged(objects)
        return None if lock is None else PulledCheckpoint(entry.folder, tuple(objects), lock.release)

    def open_entry(self, source: RangeSource, objects: Sequence[ObjectInfo], budget: RetryBudget) -> OpenEntry:
        """Lock the entry of a checkpoint's objects and make room for the missing ones.

        Args:
            source: the location of the objects.
            objects: all files of one checkpoint.
            budget: bounds the wait for another process that is pulling the same objects.

        Raises:
            CacheUnusable: objects are missing and the cache cannot be written or locked.
            HostileName: two names cannot be files of one folder.
            StorageFull: the missing objects do not fit.
            TransferFailed: the disk failed, or the deadline has passed.
        """
        check_names_together(source.uri, objects)
        entry = CacheEntry.of(self._folder, source.uri, objects)
        try:
            entry.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = wait_for_lock(entry.pull_lock, _LockWait(source.uri, budget))
            try:
                return self._prepare(source, entry, tuple(objects), lock)
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            if error.errno not in CANNOT_LOCK:
                raise _disk_error(error, source.uri, objects, entry.root) from error
            reason = os.strerror(error.errno)
        if not entry.has_valid_files(objects):
            raise CacheUnusable(reason)
        pulled = PulledCheckpoint(entry.folder, tuple(objects))
        return OpenEntry(
            source, entry, pulled, file_sums={info.name: info.crc32c for info in objects}, lock=None, is_complete=True
        )

    @property
    def _folder(self) -> Path:
        return self.root / "checkpoints"

    def _pull(
        self, source: CachedSource, objects: Sequence[ObjectInfo], progress: Progress, budget: RetryBudget
    ) -> PulledCheckpoint:
        with self.open_entry(source, objects, budget) as entry:
            if entry.missing:
                progress.expect(entry.missing_bytes)
                with show_progress(progress, source.uri):
                    entry.add(fetch_files(source, entry.missing, entry.folder, progress, budget))
            entry.complete()
            return entry.pulled

    def _prepare(
        self, source: RangeSource, entry: CacheEntry, objects: tuple[ObjectInfo, ...], lock: FileLock
    ) -> OpenEntry:
        use = entry.hold()
        try:
            pulled = PulledCheckpoint(entry.folder, objects, use.release)
            if entry.repair(source.uri, objects, verify_fully=self._verify_fully):
                sums = {info.name: info.crc32c for info in objects}
                return OpenEntry(source, entry, pulled, file_sums=sums, lock=lock, is_complete=True)
            entry.folder.mkdir(mode=0o700, exist_ok=True)
            entry.remove_parts()
            opened = OpenEntry(source, entry, pulled, file_sums=entry.sums_of_whole_files(objects), lock=lock)
            needed_bytes = opened.missing_bytes + SPARE_BYTES
            free = make_room(entry, max_checkpoints=self._max_checkpoints, needed_bytes=needed_bytes)
            if free < needed_bytes:
                raise StorageFull(source.uri, needed_bytes=needed_bytes, free_bytes=free, path=str(entry.root))
        except BaseException:
            use.release()
            raise
        return opened


class _LockWait:
    """Waits, and logs now and then, while another process holds the pull lock."""

    def __init__(self, uri: str, budget: RetryBudget) -> None:
        self._uri, self._budget = uri, budget
        self._since_s = self._logged_s = time.monotonic()

    def __call__(self) -> None:
        self._budget.check(self._uri, "waiting for another process that pulls the same checkpoint")
        now_s = time.monotonic()
        if now_s - self._logged_s >= LOCK_LOG_INTERVAL_S:
            self._logged_s = now_s
            logger.info("another process pulls %s", self._uri, extra={"waited_s": round(now_s - self._since_s)})
        self._budget.sleep(LOCK_POLL_S)


def private_cache() -> CheckpointCache:
    """Return a cache in a private folder."""
    return CheckpointCache(private_folder(), max_checkpoints=1)


def _disk_error(error: OSError, uri: str, objects: Sequence[ObjectInfo], root: Path) -> CheckpointError:
    if error.errno in DISK_FULL:
        needed_bytes = sum(info.size_bytes for info in objects) + SPARE_BYTES
        return StorageFull(uri, needed_bytes=needed_bytes, free_bytes=free_bytes(root.parent), path=str(root))
    return TransferFailed(uri, str(root.parent), f"the cache failed: {error.strerror}.")
