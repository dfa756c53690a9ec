"""A checkpoint in a local folder, listed like a bucket and used in place.

Whoever can write to this folder can write to this machine, so its names and bytes are not checked.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from service.errors import AccessDenied, CheckpointNotFound, ObjectChanged
from service.observability.progress import Progress
from service.storage.cache.cache import CheckpointCache, PulledCheckpoint
from service.storage.location import LocalLocation
from service.storage.objects import RECORD_NAME, ObjectInfo
from service.storage.open_files import FolderRanges, OpenFiles, open_pulled


class LocalSource:
    """The files below one folder."""

    def __init__(self, location: LocalLocation) -> None:
        self.uri = location.uri
        self._path = location.path

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def list(self) -> tuple[ObjectInfo, ...]:
        """List every file below the folder except hidden ones, following links.

        Raises:
            CheckpointNotFound: there is no such folder, or it is empty.
            AccessDenied: the folder may not be read.
        """
        if not self._path.exists():
            raise CheckpointNotFound(
                self.uri, "no such folder. Write gs://bucket/prefix for a bucket, hf://org/name for the Hub."
            )
        if not self._path.is_dir():
            is_gguf = self._path.suffix.lower() == ".gguf"
            remedy = "GGUF is not read: name a folder of safetensors" if is_gguf else "Name the folder that contains it"
            raise CheckpointNotFound(self.uri, f"this is a file. {remedy}.")
        objects = tuple(sorted(self._files(), key=lambda info: info.name))
        if not objects:
            raise CheckpointNotFound(
                self.uri, "the folder is empty. Name the one that holds config.json, weights and tokenizer."
            )
        return objects

    def read(self, info: ObjectInfo) -> bytes:
        """Read a file.

        Raises:
            ObjectChanged: the file is gone.
            AccessDenied: the file may not be read.
        """
        try:
            return (self._path / info.name).read_bytes()
        except FileNotFoundError as error:
            raise ObjectChanged(self.uri, info.name, info.generation) from error
        except PermissionError as error:
            raise AccessDenied(self.uri, f"{info.name} may not be read by this user.") from error

    def pull(
        self,
        objects: Sequence[ObjectInfo],
        cache: CheckpointCache,
        progress: Progress,
        cancelled: threading.Event | None = None,
    ) -> PulledCheckpoint:
        """Return the folder itself; nothing is copied."""
        return PulledCheckpoint(self._path, tuple(objects))

    def is_on_this_machine(self, objects: Sequence[ObjectInfo], cache: CheckpointCache | None) -> bool:
        """Return True: a folder is used in place."""
        return True

    def open_files(
        self,
        objects: Sequence[ObjectInfo],
        chosen: Sequence[ObjectInfo],
        *,
        cache: CheckpointCache | None,
        progress: Progress,
        cancelled: threading.Event | None = None,
    ) -> AbstractContextManager[OpenFiles]:
        """Open files where they lie; nothing is copied."""
        return open_pulled(self.uri, PulledCheckpoint(self._path, tuple(objects)), chosen, progress, cancelled)

    def open_ranges(self) -> FolderRanges:
        """Open files where they lie."""
        return FolderRanges(self.uri, self._path)

    def _files(self) -> Iterator[ObjectInfo]:
        def raise_denied(error: OSError) -> None:
            raise AccessDenied(self.uri, f"{error.filename} may not be read by this user.") from error

        # Links are followed: the Hub's own cache is a folder of them.
        for folder, folders, names in os.walk(self._path, followlinks=True, onerror=raise_denied):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                path = Path(folder, name)
                if path.is_file() and not name.startswith(".") and name != RECORD_NAME:
                    status = path.stat()
                    relative = path.relative_to(self._path).as_posix()
                    yield ObjectInfo(relative, status.st_size, generation=status.st_mtime_ns)
