"""A file that is written under a temporary name, and renamed once its bytes are known to be right."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.errors import StorageFull, TransferFailed
from service.storage import crc32c
from service.storage.files import DISK_FULL, PART_SUFFIX, free_bytes, part_path
from service.storage.gzip import unpack_file
from service.storage.objects import ObjectInfo


class PartFile:
    """One object on its way into a folder; its bytes may be written in any order and by several threads."""

    def __init__(self, uri: str, info: ObjectInfo, folder: Path) -> None:
        """Choose a name; the file is created by the first write.

        Args:
            uri: the checkpoint's address, for messages.
            info: the object.
            folder: the folder that gets the file, under the object's name.
        """
        self._uri, self._info, self._folder = uri, info, folder
        self._final = folder / info.name
        self._part = part_path(self._final)
        self._lock = threading.Lock()
        self._descriptor: int | None = None

    def write(self, data: memoryview | bytes, offset: int) -> None:
        """Write stored bytes from byte `offset` of the object.

        Raises:
            StorageFull: the file system has no room left.
            TransferFailed: the folder cannot be written.
        """
        with self._naming_disk_errors():
            descriptor, view = self._open(), memoryview(data)
            while view:
                written = os.pwrite(descriptor, view, offset)
                view = view[written:]
                offset += written

    def commit(self) -> str:
        """Flush the file, unpacked if the object is stored with gzip, give it its name, and return its crc32c.

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


def _reserve(descriptor: int, size_bytes: int) -> None:
    # Finds a full disk before the first byte, and keeps the file contiguous.
    if size_bytes == 0:
        return
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
