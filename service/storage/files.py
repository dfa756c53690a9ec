"""File locks and atomic writes for files that several processes share.

Locks use `flock` rather than the existence of a file, so a killed process leaves none behind.
"""

import atexit
import errno
import fcntl
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from service.errors import StorageFull, TransferFailed
from service.storage import crc32c
from service.storage.gzip import unpack_file
from service.storage.objects import PART_SUFFIX, ObjectInfo

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# Errors from a folder that cannot hold a lock: it is read-only, or its file system (gcsfuse, some NFS) has no locks.
CANNOT_LOCK = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS})


class FileLock:
    """An acquired lock, released by `release`, the end of a `with` block or the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def __enter__(self) -> "FileLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def try_lock(path: Path, *, is_shared: bool = False) -> FileLock | None:
    """Lock a file, creating it if needed; return None while another process holds it.

    Raises:
        OSError: the folder cannot hold a lock; `CANNOT_LOCK` lists the usual error numbers.
    """
    while (descriptor := _open_locked(path, os.O_RDWR | os.O_CREAT, is_shared=is_shared)) is not None:
        # An evicting process may have deleted the file between open and lock; such a lock excludes nobody.
        if _is_at(path, descriptor):
            return FileLock(descriptor)
        os.close(descriptor)
    return None


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
    """Lock a file; while another process holds it, call `pause`, which sleeps or raises.

    Raises:
        OSError: the folder cannot hold a lock.
    """
    while (lock := try_lock(path)) is None:
        pause()
    return lock


def part_path(final: Path) -> Path:
    """Return a unique hidden path next to `final`, to be renamed to it once complete."""
    return final.with_name(f".{final.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}{PART_SUFFIX}")


def atomic_write(path: Path, data: bytes) -> None:
    """Write or replace a file so that readers see all of `data` or none of it, even after a machine crash.

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
    """Rename a complete file, flushing its bytes first and its folder afterwards.

    Raises:
        OSError: the disk failed.
    """
    sync(part)
    part.replace(final)
    sync(final.parent)


def sync(path: Path) -> None:
    """Flush a file's bytes or a folder's entries to disk.

    Raises:
        OSError: the disk failed.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class PartFile:
    """An object being written into a folder, in any order and by several threads."""

    def __init__(self, uri: str, info: ObjectInfo, folder: Path) -> None:
        """Choose a name; the file is created by the first write.

        Args:
            uri: the checkpoint's address, for error messages.
            info: the object.
            folder: the folder to write the file to, under the object's name.
        """
        self._uri, self._info, self._folder = uri, info, folder
        self._final = folder / info.name
        self._part = part_path(self._final)
        self._lock = threading.Lock()
        self._descriptor: int | None = None

    def write(self, data: memoryview | bytes, offset: int) -> None:
        """Write stored bytes at byte `offset` of the object.

        Raises:
            StorageFull: the file system is full.
            TransferFailed: the folder cannot be written.
        """
        with self._naming_disk_errors():
            descriptor, view = self._open(), memoryview(data)
            while view:
                written = os.pwrite(descriptor, view, offset)
                view = view[written:]
                offset += written

    def commit(self) -> str:
        """Unpack the file if the object is stored with gzip, flush and rename it, and return its crc32c.

        Raises:
            MalformedCheckpoint: the object does not unpack.
            StorageFull, TransferFailed: see `write`.
        """
        file_sum = self._info.crc32c
        with self._naming_disk_errors():
            descriptor = self._open()
            if self._info.is_gzipped:
                file_sum = self._unpack()
                os.close(descriptor)
                descriptor = self._descriptor = os.open(self._part, os.O_RDWR | os.O_CLOEXEC)
            os.fsync(descriptor)
            self._part.replace(self._final)
            os.close(descriptor)
            self._descriptor = None
        return file_sum

    def discard(self) -> None:
        """Delete the temporary file unless it was committed; no thread may be writing to it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            self._part.unlink(missing_ok=True)

    def _open(self) -> int:
        with self._lock:
            if self._descriptor is None:
                self._part.parent.mkdir(parents=True, exist_ok=True)
                self._descriptor = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                _reserve(self._descriptor, self._info.size_bytes)
            return self._descriptor

    def _unpack(self) -> str:
        unpacked = self._part.with_name(f"{self._part.name.removesuffix(PART_SUFFIX)}.unpacked{PART_SUFFIX}")
        try:
            crc = unpack_file(self._uri, self._info, self._part, unpacked)
            unpacked.replace(self._part)
        finally:
            unpacked.unlink(missing_ok=True)
        return crc32c.to_text(crc)

    @contextmanager
    def _naming_disk_errors(self) -> Iterator[None]:
        folder = self._final.parent
        try:
            yield
        except OSError as error:
            if error.errno in DISK_FULL:
                needed_bytes, free = self._info.size_bytes, free_bytes(self._folder)
                raise StorageFull(self._uri, needed_bytes=needed_bytes, free_bytes=free, path=str(folder)) from error
            reason = f"cannot be written under {folder}: {error.strerror}"
            raise TransferFailed(self._uri, self._info.name, reason) from error


def private_folder() -> Path:
    """Create a folder that only this user can read and that is deleted when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="levserve-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def free_bytes(folder: Path) -> int:
    """Return the bytes that an unprivileged user may still write to a folder's file system."""
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


def _reserve(descriptor: int, size_bytes: int) -> None:
    # Detects a full disk before the first byte, and keeps the file contiguous. EINVAL: there is nothing to reserve, or
    # the file system does not support it.
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
