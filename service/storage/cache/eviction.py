"""Which pulled checkpoints leave the cache: the least recently used, and never one that a process holds."""

import logging
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress

from service.storage.cache.entry import Place
from service.storage.files import free_bytes, try_lock

logger = logging.getLogger(__name__)

TRASH_PREFIX = ".trash-"


def make_room(kept: Place, *, max_checkpoints: int, needed_bytes: int) -> int:
    """Evict until `kept` is within the count and its bytes fit, as far as locks allow; return the bytes then free."""
    for trash in kept.root.glob(f"{TRASH_PREFIX}*"):
        shutil.rmtree(trash, ignore_errors=True)
    others = _by_last_use(kept)
    surplus = len(others) + 1 - max_checkpoints
    for place in others:
        if surplus <= 0 and free_bytes(kept.root) >= needed_bytes:
            break
        if _evict(place):
            surplus -= 1
    if free_bytes(kept.root) < needed_bytes:
        shutil.rmtree(kept.quarantine, ignore_errors=True)
    return free_bytes(kept.root)


def _by_last_use(kept: Place) -> list[Place]:
    return [place for _, place in sorted(_dated(kept), key=lambda dated: dated[0])]


def _dated(kept: Place) -> Iterator[tuple[float, Place]]:
    for folder in kept.root.iterdir():
        place = Place(kept.root, folder.name)
        if folder.name != kept.name and folder.is_dir():
            # Without locks it is not ours to delete, or another process is deleting it.
            with suppress(FileNotFoundError):
                yield place.use_lock.stat().st_mtime, place


def _evict(place: Place) -> bool:
    with ExitStack() as held:
        for path in (place.pull_lock, place.use_lock):
            lock = try_lock(path)
            if lock is None:
                return False
            held.enter_context(lock)
        # Renamed first: a kill in the middle of the deletion must not leave half a checkpoint under its name.
        trash = place.root / f"{TRASH_PREFIX}{uuid.uuid4().hex[:8]}"
        with suppress(FileNotFoundError):
            place.folder.replace(trash)
        shutil.rmtree(trash, ignore_errors=True)
        shutil.rmtree(place.quarantine, ignore_errors=True)
        place.use_lock.unlink(missing_ok=True)
        place.pull_lock.unlink(missing_ok=True)
    logger.info("evicted a checkpoint from the cache", extra={"checkpoint": place.name})
    return True
