"""The local cache of pulled checkpoints: one folder per version, complete or invisible, shared by processes.

    LOCAL_MODEL_CACHE/checkpoints/
      my-model-3f2a…/          the files, and COMPLETE.json, which is written last
      my-model-3f2a….lock      held alone while it is pulled or checked
      my-model-3f2a….use       held together while it is served
      my-model-3f2a….corrupt/  files whose bytes changed on the disk

The name holds a digest of the listing, so another version of any object is another folder and nothing is ever
written in place. A pull that was killed leaves whole files, which the next one sums and keeps.
"""

import atexit
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from service.errors import StorageFull, TransferFailed
from service.storage.cache.entry import Place
from service.storage.cache.eviction import make_room
from service.storage.cache.record import mark_of, write_record
from service.storage.cache.verification import recorded, sums_of_whole_files, wrong_files
from service.storage.download import Bring, download
from service.storage.fetch import ByteRanges
from service.storage.files import CANNOT_LOCK, DISK_FULL, PART_SUFFIX, free_bytes, sync, try_lock, wait_for_lock
from service.storage.objects import RECORD_NAME, ObjectInfo, check_names_together
from service.storage.progress import Progress, show_progress
from service.storage.retry import Patience, TransferLimits

logger = logging.getLogger(__name__)

# Room that is left over for the record, the folders and whatever else writes to the same disk.
SPARE_BYTES = 1024 * 1024
LOCK_POLL_S = 0.1
LOCK_LOG_INTERVAL_S = 10.0


@runtime_checkable
class Bucket(ByteRanges, Protocol):
    """A bucket, as far as the cache needs to know it."""

    limits: TransferLimits


@dataclass(frozen=True, slots=True)
class _Order:
    source: Bucket
    objects: Sequence[ObjectInfo]
    progress: Progress
    patience: Patience
    bring: Bring = download


@dataclass(frozen=True, slots=True)
class PulledCheckpoint:
    """Files of a checkpoint on this machine; they stay where they are until `release` or the end of the process."""

    path: Path
    objects: tuple[ObjectInfo, ...]
    release: Callable[[], None] = lambda: None


class CacheUnusable(Exception):
    """The cache lacks the checkpoint and can be neither written nor locked."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CheckpointCache:
    """A folder of pulled checkpoints that several processes may use at once."""

    def __init__(self, root: Path, *, max_checkpoints: int, verify_fully: bool = False) -> None:
        """Make a cache below `root`; nothing is written yet.

        Args:
            root: LOCAL_MODEL_CACHE.
            max_checkpoints: MAX_CACHED_MODELS.
            verify_fully: sum every file at every start, and not only those whose marks changed.
        """
        self.root = root.expanduser().absolute()
        self._max_checkpoints = max_checkpoints
        self._verify_fully = verify_fully

    def pull(
        self,
        source: Bucket,
        objects: Sequence[ObjectInfo],
        progress: Progress,
        cancelled: threading.Event | None = None,
    ) -> PulledCheckpoint:
        """Bring objects of a bucket into the cache, or find them there, and hold them.

        A cache that cannot be written is still read; what it lacks goes to a private folder that ends with the process.

        Raises:
            HostileName: two names cannot lie side by side; nothing was downloaded.
            StorageFull: the objects do not fit.
            CorruptObject, ObjectChanged, AccessDenied, TransferFailed: see `download`.
        """
        order = _Order(source, objects, progress, Patience(source.limits, cancelled))
        try:
            return self._fill(order)
        except CacheUnusable as error:
            return self._pull_privately(error.reason, order)

    def fill(
        self, source: Bucket, objects: Sequence[ObjectInfo], progress: Progress, patience: Patience, bring: Bring
    ) -> PulledCheckpoint:
        """Find objects in the cache, or have `bring` put what is missing there, and hold them.

        Args:
            source: where the objects lie.
            objects: what belongs together.
            progress: told what comes.
            patience: how long it may take, the waiting for another process included.
            bring: called, with the checkpoint locked, for what is not in the folder whole and right.

        Raises:
            CacheUnusable: the cache lacks the objects and cannot be written or locked.
            StorageFull: the objects do not fit.
            CheckpointError: whatever `bring` raises.
        """
        return self._fill(_Order(source, objects, progress, patience, bring))

    def find(self, source: Bucket, objects: Sequence[ObjectInfo]) -> PulledCheckpoint | None:
        """Hold objects that are in the cache already, by the look of their files; None if they are not, or in doubt."""
        place = Place.of(self.root / "checkpoints", source.uri, objects)
        if not place.has_by_its_marks(objects):
            return None
        try:
            use = try_lock(place.use_lock, is_shared=True)
        except OSError:
            return None
        if use is None:  # another process is about to evict it
            return None
        if not place.has_by_its_marks(objects):
            use.release()
            return None
        return PulledCheckpoint(place.folder, tuple(objects), use.release)

    def _fill(self, order: _Order) -> PulledCheckpoint:
        source, objects = order.source, order.objects
        check_names_together(source.uri, objects)
        root = self.root / "checkpoints"
        place = Place.of(root, source.uri, objects)
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            return self._pull_into(place, order)
        except OSError as error:
            if error.errno in DISK_FULL:
                needed_bytes = sum(info.size_bytes for info in objects) + SPARE_BYTES
                free = free_bytes(self.root)
                raise StorageFull(source.uri, needed_bytes=needed_bytes, free_bytes=free, path=str(root)) from error
            if error.errno not in CANNOT_LOCK:
                raise TransferFailed(source.uri, str(self.root), f"the cache failed: {error.strerror}.") from error
            reason = os.strerror(error.errno)
        files = recorded(place.folder, objects)
        if files is None or wrong_files(place.folder, files):
            raise CacheUnusable(reason)
        return PulledCheckpoint(place.folder, tuple(objects))

    def _pull_into(self, place: Place, order: _Order) -> PulledCheckpoint:
        with wait_for_lock(place.pull_lock, _pause(order)):
            use = place.hold()
            try:
                if not self._is_complete(place, order):
                    self._complete(place, order)
            except BaseException:
                use.release()
                raise
        return PulledCheckpoint(place.folder, tuple(order.objects), use.release)

    def _is_complete(self, place: Place, order: _Order) -> bool:
        files = recorded(place.folder, order.objects)
        if files is None:
            return False
        suspects = [f for f in files if self._verify_fully or mark_of(place.folder / f.info.name) != f.mark]
        corrupt = wrong_files(place.folder, suspects)
        if corrupt:
            (place.folder / RECORD_NAME).unlink()
            for file in corrupt:
                place.set_aside(file)
        elif suspects:
            # Right bytes under new marks, as after a copy of the cache: the next start need not sum them again.
            write_record(place.folder, order.source.uri, order.objects, {file.info.name: file.crc32c for file in files})
        return not corrupt

    def _complete(self, place: Place, order: _Order) -> None:
        place.folder.mkdir(mode=0o700, exist_ok=True)
        for part in place.folder.rglob(f".*{PART_SUFFIX}"):
            part.unlink()
        sums = sums_of_whole_files(place.folder, order.objects)
        missing = [info for info in order.objects if info.name not in sums]
        missing_bytes = sum(info.size_bytes for info in missing)
        needed_bytes = missing_bytes + SPARE_BYTES
        free = make_room(place, max_checkpoints=self._max_checkpoints, needed_bytes=needed_bytes)
        if free < needed_bytes:
            raise StorageFull(order.source.uri, needed_bytes=needed_bytes, free_bytes=free, path=str(place.root))
        order.progress.expect(missing_bytes)
        with show_progress(order.progress, order.source.uri):
            sums |= order.bring(order.source, missing, place.folder, order.progress, order.patience)
        for folder in [place.folder, *(path for path in place.folder.rglob("*") if path.is_dir())]:
            sync(folder)
        write_record(place.folder, order.source.uri, order.objects, sums)
        sync(place.root)

    def _pull_privately(self, reason: str, order: _Order) -> PulledCheckpoint:
        private = private_folder()
        facts = {"cache": str(self.root), "reason": reason, "private_folder": str(private)}
        logger.warning("the cache cannot be written or locked; pulling for this process alone", extra=facts)
        try:
            return self._pull_into(Place.of(private, order.source.uri, order.objects), order)
        except BaseException:
            shutil.rmtree(private, ignore_errors=True)
            raise


def _pause(order: _Order) -> Callable[[], None]:
    """Return what passes the time while another process holds the pull lock; it raises when the patience ends."""
    waiting_since_s = logged_at_s = time.monotonic()

    def pause() -> None:
        nonlocal logged_at_s
        order.patience.check(order.source.uri, "waiting for another process that pulls the same checkpoint")
        if time.monotonic() - logged_at_s >= LOCK_LOG_INTERVAL_S:
            logged_at_s = time.monotonic()
            facts = {"waited_s": round(logged_at_s - waiting_since_s)}
            logger.info("another process pulls %s", order.source.uri, extra=facts)
        order.patience.sleep(LOCK_POLL_S)

    return pause


def private_folder() -> Path:
    """Make a folder that nobody else may read and that ends with the process."""
    folder = Path(tempfile.mkdtemp(prefix="levserve-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def private_cache() -> CheckpointCache:
    """Return a cache that ends with this process."""
    return CheckpointCache(private_folder(), max_checkpoints=1)
