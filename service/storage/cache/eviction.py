"""Eviction of the least recently used checkpoints, never of one that a process holds."""

import logging
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress

from service.storage.cache.entry import CacheEntry
from service.storage.files import free_bytes, try_lock

logger = logging.getLogger(__name__)

TRASH_PREFIX = ".trash-"


def make_room(kept: CacheEntry, *, max_checkpoints: int, needed_bytes: int) -> int:
    """Evict until `kept` is within the count and its bytes fit, as far as locks allow; return the bytes then free."""
    for trash in kept.root.glob(f"{TRASH_PREFIX}*"):
        shutil.rmtree(trash, ignore_errors=True)
    others = _by_last_use(kept)
    surplus = len(others) + 1 - max_checkpoints
    for entry in others:
        if surplus <= 0 and free_bytes(kept.root) >= needed_bytes:
            break
        if _evict(entry):
            surplus -= 1
    if free_bytes(kept.root) < needed_bytes:
        shutil.rmtree(kept.quarantine, ignore_errors=True)
    return free_bytes(kept.root)


def _by_last_use(kept: CacheEntry) -> list[CacheEntry]:
    return [entry for _, entry in sorted(_with_last_use(kept), key=lambda pair: pair[0])]


def _with_last_use(kept: CacheEntry) -> Iterator[tuple[float, CacheEntry]]:
    for folder in kept.root.iterdir():
        entry = CacheEntry(kept.root, folder.name)
        if folder.name != kept.name and folder.is_dir():
            # A folder without locks is not the cache's, or another process is deleting it.
            with suppress(FileNotFoundError):
                yield entry.use_lock.stat().st_mtime, entry


def _evict(entry: CacheEntry) -> bool:
    with ExitStack() as held:
        for path in (entry.pull_lock, entry.use_lock):
            lock = try_lock(path)
            if lock is None:
                return False
            held.enter_context(lock)
        # Renamed first: a kill in the middle of the deletion must not leave half a checkpoint under its name.
        trash = entry.root / f"{TRASH_PREFIX}{uuid.uuid4().hex[:8]}"
        with suppress(FileNotFoundError):
            entry.folder.replace(trash)
        shutil.rmtree(trash, ignore_errors=True)
        shutil.rmtree(entry.quarantine, ignore_errors=True)
        entry.use_lock.unlink(missing_ok=True)
        entry.pull_lock.unlink(missing_ok=True)
    logger.info("evicted a checkpoint from the cache", extra={"checkpoint": entry.name})
    return True
