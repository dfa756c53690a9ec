"""An `ObjectStore` in a local or mounted folder."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import BinaryIO

from service.storage.files import FileLock, atomic_write, part_path, replace_synced, sync, try_lock
from service.storage.objects import PART_SUFFIX, check_name

CLAIMS = "claims"


class FolderStore:
    """The files below one folder, which only this user can read."""

    def __init__(self, path: Path) -> None:
        self.uri = str(path)
        self._path = path

    def list(self, folder: str) -> dict[str, int]:
        """Return the sizes of all complete files below a folder; "" means the whole store."""
        sizes = {}
        for parent, _, names in os.walk(self._at(folder) if folder else self._path):
            for name in names:
                path = Path(parent, name)
                if not name.endswith(PART_SUFFIX):
                    with contextlib.suppress(FileNotFoundError):  # deleted just now
                        sizes[path.relative_to(self._path).as_posix()] = path.stat().st_size
        return dict(sorted(sizes.items()))

    def read(self, name: str) -> bytes | None:
        file = self.open(name)
        if file is None:
            return None
        with file:
            return file.read()

    def open(self, name: str) -> BinaryIO | None:
        """Open a file, or return None if it does not exist. A file deleted afterwards can still be read to its end."""
        try:
            return self._at(name).open("rb")
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes | BinaryIO) -> None:
        try:
            self._write(self._with_parent(name), content)
        except FileNotFoundError:  # a concurrent `delete` removed the empty folder
            self._write(self._with_parent(name), content)

    def _write(self, path: Path, content: bytes | BinaryIO) -> None:
        if isinstance(content, bytes):
            atomic_write(path, content)
            return
        part = part_path(path)
        try:
            content.seek(0)
            with part.open("xb") as file:
                shutil.copyfileobj(content, file)
            replace_synced(part, path)
        finally:
            part.unlink(missing_ok=True)

    def copy(self, name: str, target: str) -> bool:
        """Hard-link a file to a second name; safe because files are replaced, never modified."""
        path = self._with_parent(target)
        try:
            path.hardlink_to(self._at(name))
        except FileNotFoundError:
            return False
        except OSError:  # the file system has no links, or the target exists
            if (source := self.open(name)) is None:
                return False
            with source:
                self.write(target, source)
            return True
        sync(path.parent)
        return True

    def delete(self, name: str) -> None:
        """Delete a file and the folders that this leaves empty."""
        path = self._at(name)
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the folder is not empty, or is gone
            while (path := path.parent) != self._path:
                path.rmdir()

    def claim(self, name: str) -> "FolderClaim | None":
        """Lock a file of this name; the kernel releases it when the process ends."""
        path = self._with_parent(f"{CLAIMS}/{name}")
        lock = try_lock(path)
        return None if lock is None else FolderClaim(path, lock)

    def _at(self, name: str) -> Path:
        check_name(self.uri, name)
        return self._path / name

    def _with_parent(self, name: str) -> Path:
        path = self._at(name)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path


class FolderClaim:
    """A locked file; a `Claim`."""

    def __init__(self, path: Path, lock: FileLock) -> None:
        self._path = path
        self._lock = lock

    def renew(self) -> bool:
        """Return True: a lock does not expire."""
        return True

    def release(self) -> None:
        """Delete the file, then release the lock."""
        self._path.unlink(missing_ok=True)
        self._lock.release()
