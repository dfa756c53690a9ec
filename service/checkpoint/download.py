"""Objects of a bucket to files of a folder: in parallel, in slices, each file visible only when it is whole and right.

A file grows under a temporary name beside its final one. Its slices come in any order, each summed as it is written;
when the last has come the sums are combined and compared with the listing, and only then the file gets its name.
"""

import errno
import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

from service.checkpoint import content, crc32c
from service.checkpoint.manifest import PART_SUFFIX, ObjectInfo
from service.checkpoint.progress import Progress
from service.checkpoint.transfer import Patience
from service.errors import CorruptObject, StorageFull, TransferFailed

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@runtime_checkable
class Streams(Protocol):
    """Whatever the bytes of an object can be read from, by range."""

    uri: str

    def stream(self, info: ObjectInfo, start: int, length: int, patience: Patience) -> Iterator[bytes]:
        """Read a range as it arrives; a `TransientFault` may interrupt it."""
        ...


def download(
    source: Streams, objects: Sequence[ObjectInfo], folder: Path, progress: Progress, patience: Patience
) -> dict[str, str]:
    """Bring objects into a folder and return each file's crc32c by name.

    Raises:
        CorruptObject: an object's sum was wrong twice.
        ObjectChanged: an object was overwritten or deleted since it was listed.
        StorageFull: the file system has no room left.
        TransferFailed: retries or deadline ran out, or the folder cannot be written.
    """
    files = [_GrowingFile(source, info, folder, progress, patience) for info in objects]
    num_workers = patience.limits.num_workers
    try:
        with ThreadPoolExecutor(num_workers, thread_name_prefix="pull") as pool:
            futures = [pool.submit(file.fetch, index) for file in files for index in range(len(file.ranges))]
            _finish(futures, patience)
    finally:
        for file in files:
            file.discard()
    return {file.info.name: file.file_sum for file in files}


def _finish(futures: Sequence[Future[None]], patience: Patience) -> None:
    try:
        for future in as_completed(futures):
            future.result()
    except BaseException:
        # The first failure is the one to tell; the rest stop at their next chunk.
        patience.cancel()
        for future in futures:
            future.cancel()
        raise


class _GrowingFile:
    def __init__(self, source: Streams, info: ObjectInfo, folder: Path, progress: Progress, patience: Patience) -> None:
        slice_bytes = patience.limits.slice_bytes
        starts = range(0, info.size_bytes, slice_bytes) or range(1)
        self.info = info
        self.ranges = [(start, min(slice_bytes, info.size_bytes - start)) for start in starts]
        self.file_sum = ""
        self._source, self._progress, self._patience = source, progress, patience
        self._folder = folder
        self._final = folder / info.name
        self._part = self._final.with_name(f".{self._final.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}{PART_SUFFIX}")
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._sums: dict[int, int] = {}

    def fetch(self, index: int) -> None:
        """Fetch one slice; whoever fetches the last one gives the file its name."""
        self._patience.check(self._source.uri, self.info.name)
        with self._disk_errors_named():
            crc = self._fetch_slice(index)
            with self._lock:
                self._sums[index] = crc
                is_last = len(self._sums) == len(self.ranges)
            if is_last:
                self._check_sum()
                self._put_in_place()

    def discard(self) -> None:
        """Delete the temporary file, if it is still there."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            self._part.unlink(missing_ok=True)

    def _fetch_slice(self, index: int) -> int:
        start, length = self.ranges[index]
        descriptor = self._open()
        done_bytes = crc = 0

        def attempt() -> None:
            nonlocal done_bytes, crc
            # A slice that broke off goes on where it stopped.
            for chunk in self._source.stream(self.info, start + done_bytes, length - done_bytes, self._patience):
                _write_at(descriptor, chunk, start + done_bytes)
                crc = crc32c.extend(crc, chunk)
                done_bytes += len(chunk)
                self._progress.add(len(chunk))

        self._patience.try_often(attempt, self._source.uri, self.info.name)
        return crc

    def _open(self) -> int:
        with self._lock:
            if self._descriptor is None:
                self._part.parent.mkdir(parents=True, exist_ok=True)
                self._descriptor = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                _reserve(self._descriptor, self.info.size_bytes)
            return self._descriptor

    def _check_sum(self) -> None:
        actual = self._combined_sum()
        if actual != self.info.crc32c:
            # Once more, in one thread: this is rare. A second wrong sum is no accident of the network.
            self._progress.add(-self.info.size_bytes)
            for index in range(len(self.ranges)):
                self._sums[index] = self._fetch_slice(index)
            actual = self._combined_sum()
        if actual != self.info.crc32c:
            raise CorruptObject(self._source.uri, self.info.name, expected=self.info.crc32c, actual=actual)
        self.file_sum = actual

    def _combined_sum(self) -> str:
        crc = 0
        for index, (_, length) in enumerate(self.ranges):
            crc = crc32c.combine(crc, self._sums[index], length)
        return crc32c.to_text(crc)

    def _put_in_place(self) -> None:
        assert self._descriptor is not None
        if content.is_packed(self.info):
            unpacked = self._part.with_name(f"{self._part.name.removesuffix(PART_SUFFIX)}.unpacked{PART_SUFFIX}")
            try:
                self.file_sum = crc32c.to_text(content.decode_file(self._source.uri, self.info, self._part, unpacked))
                unpacked.replace(self._part)
            finally:
                unpacked.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = os.open(self._part, os.O_RDWR | os.O_CLOEXEC)
        os.fsync(self._descriptor)
        self._part.replace(self._final)
        os.close(self._descriptor)
        self._descriptor = None

    @contextmanager
    def _disk_errors_named(self) -> Iterator[None]:
        uri, folder = self._source.uri, self._final.parent
        try:
            yield
        except OSError as error:
            if error.errno in FULL:
                needed_bytes, free = self.info.size_bytes, free_bytes(self._folder)
                raise StorageFull(uri, needed_bytes=needed_bytes, free_bytes=free, path=str(folder)) from error
            raise TransferFailed(uri, self.info.name, f"cannot be written under {folder}: {error.strerror}") from error


def free_bytes(folder: Path) -> int:
    """What an ordinary user may still write into a folder's file system."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _reserve(descriptor: int, size_bytes: int) -> None:
    # Finds a full disk before the first byte, and keeps a file of one piece.
    if size_bytes == 0:
        return
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written
