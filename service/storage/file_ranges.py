"""The bytes of files on this machine, by range: what a bucket gives over the network, from the disk.

Read into a buffer and not mapped: pages of a mapped file count as this process's memory, and each costs a fault.
"""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from service.errors import AccessDenied, ObjectChanged, TransferFailed
from service.storage.objects import ObjectInfo
from service.storage.retry import Patience


class FileRanges:
    """Files of one folder; open from the first read until `close`."""

    def __init__(self, uri: str, folder: Path) -> None:
        self.uri = uri
        self._folder = folder
        self._lock = threading.Lock()
        self._descriptors: dict[str, int] = {}

    def __enter__(self) -> "FileRanges":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            for descriptor in self._descriptors.values():
                os.close(descriptor)
            self._descriptors.clear()

    def stream(
        self, info: ObjectInfo, start: int, length: int, room: Callable[[], memoryview], patience: Patience
    ) -> Iterator[int]:
        """Read a range of a file; see `ByteRanges`.

        Raises:
            ObjectChanged: the file is gone or shorter than it was.
            AccessDenied: it may not be read.
            TransferFailed: the disk failed, or the deadline has passed.
        """
        end = start + length
        while start < end:
            patience.check(self.uri, info.name)
            try:
                num_bytes = os.preadv(self._descriptor(info), [room()[: end - start]], start)
            except FileNotFoundError as error:
                raise ObjectChanged(self.uri, info.name, info.generation) from error
            except PermissionError as error:
                raise AccessDenied(self.uri, f"{info.name} may not be read by this user.") from error
            except OSError as error:
                raise TransferFailed(self.uri, info.name, f"cannot be read: {error.strerror}") from error
            if num_bytes == 0:
                raise ObjectChanged(self.uri, info.name, info.generation)
            start += num_bytes
            yield num_bytes

    def _descriptor(self, info: ObjectInfo) -> int:
        with self._lock:
            if info.name not in self._descriptors:
                self._descriptors[info.name] = os.open(self._folder / info.name, os.O_RDONLY | os.O_CLOEXEC)
            return self._descriptors[info.name]
