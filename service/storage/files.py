"""Files that processes share: locks that end with their holder, and writes that are complete or invisible.

The locks are `flock` and not a file's mere existence: a process that is killed leaves none behind.
"""

import atexit
import errno
import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

PART_SUFFIX = ".part"

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# Errors of a folder that cannot hold a lock: it is read-only, or its file system (gcsfuse, some NFS) has no locks.
CANNOT_LOCK = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS})


class FileLock:
    """A held lock; it ends with `release`, with the `with` block or with the process."""

    def __init__(self, descriptor: int) -> None:
        """Own a locked descriptor."""
        self._descriptor: int | None = descriptor

    def __enter__(self) -> "FileLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Free the lock; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def try_lock(path: Path, *, is_shared: bool = False) -> FileLock | None:
    """Lock a file, creating it if needed; return None while another process holds it.

    Raises:
        OSError: the folder cannot hold a lock; `CANNOT_LOCK` lists the usual numbers.
    """
    while (descriptor := _open_locked(path, os.O_RDWR | os.O_CREAT, is_shared=is_shared)) is not None:
        # A process that evicts may have deleted the file between opening and locking; such a lock excludes no one.
        if _is_at(path, descriptor):
            return FileLock(descriptor)
        os.close(descriptor)
    return None


def try_lock_folder(path: Path) -> FileLock | None:
    """Lock an existing folder; return None while another process holds it.

    Raises:
        OSError: the folder does not exist or cannot be locked.
    """
    descriptor = _open_locked(path, os.O_RDONLY | os.O_DIRECTORY, is_shared=False)
    return None if descriptor is None else FileLock(descriptor)


def try_lock_descriptor(descriptor: int, *, is_shared: bool = False) -> bool:
    """Lock an open file until its descriptor is closed; return False while another process holds it.

    Raises:
        OSError: the file cannot be locked.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(path: Path, pause: Callable[[], None]) -> FileLock:
    """Lock a file; call `pause`, which sleeps or raises, for as long as another process holds it.

    Raises:
        OSError: the folder cannot hold a lock.
    """
    while (lock := try_lock(path)) is None:
        pause()
    return lock


def part_path(final: Path) -> Path:
    """Return a new hidden name in the folder of `final`, for what will be renamed to it once it is complete."""
    return final.with_name(f".{final.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}{PART_SUFFIX}")


def atomic_write(path: Path, data: bytes) -> None:
    """Write or replace a file so that a reader, even after a crash of the machine, finds all of `data` or none of it.

    Raises:
        OSError: the folder cannot be written or is full.
    """
    part = part_path(path)
    try:
        with part.open("xb") as file:
            file.write(data)
        replace_synced(part, path)
    finally:
        part.unlink(missing_ok=True)


def replace_synced(part: Path, final: Path) -> None:
    """Rename a complete file, after its bytes are on the disk and before the name is.

    Raises:
        OSError: the disk failed.
    """
    sync(part)
    part.replace(final)
    sync(final.parent)


def sync(path: Path) -> None:
    """Flush a file's bytes, or a folder's names, to the disk.

    Raises:
        OSError: the disk failed.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def private_folder() -> Path:
    """Create a folder that only this user can read and that is deleted when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="levserve-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def free_bytes(folder: Path) -> int:
    """Return how much an unprivileged user may still write into a folder's file system."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _open_locked(path: Path, flags: int, *, is_shared: bool) -> int | None:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        is_locked = try_lock_descriptor(descriptor, is_shared=is_shared)
    except BaseException:
        os.close(descriptor)
        raise
    if not is_locked:
        os.close(descriptor)
        return None
    return descriptor


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
