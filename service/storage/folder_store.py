"""An `ObjectStore` in a local or mounted folder."""

import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from service.storage.files import FileLock, part_path, sync, try_lock, try_lock_descriptor, wait_for_lock
from service.storage.objects import PART_SUFFIX, check_name

CLAIMS = "claims"
LOCK_NAME = ".lock"  # held by each update
LOCK_TIMEOUT_S, LOCK_INTERVAL_S = 10.0, 0.005
# A part that no process has locked is deleted once it is so old: its writer locks it just after it has created it.
FORGET_PARTS_AFTER_S = 3600.0


class FolderStore:
    """The files below one folder, which only this user can read."""

    def __init__(self, path: Path) -> None:
        self.uri = str(path)
        self._path = path

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def list(self, folder: str) -> dict[str, int]:
        """Return the sizes of all complete files below a folder; "" means the whole store."""
        sizes = {}
        for parent, _, names in os.walk(self._at(folder) if folder else self._path):
            for name in names:
                path = Path(parent, name)
                if not name.endswith(PART_SUFFIX) and (name != LOCK_NAME or path.parent != self._path):
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
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, content: bytes | Path | BinaryIO, *, replaces: bool = True) -> bool:
        """Write a file; one that is given as a path is linked where possible, and equal bytes stay as they are."""
        if isinstance(content, bytes) and self._has(name, content):
            return replaces
        try:
            return _write(self._with_parent(name), content, replaces=replaces)
        except FileNotFoundError:  # a concurrent `delete` removed the empty folder
            return _write(self._with_parent(name), content, replaces=replaces)

    def update(self, name: str, change: Callable[[bytes | None], bytes | None]) -> bytes | None:
        """Replace an object under the store's lock; a writer of a new object needs none."""
        with self._locked():
            while True:
                present = self.read(name)
                if (content := change(present)) is None:
                    return present
                if self.write(name, content, replaces=present is not None):
                    return content

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

    def delete_folder(self, folder: str) -> None:
        """Delete a folder, at once for all readers."""
        path = self._at(folder)
        trash = part_path(path)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def sweep(self) -> None:
        for parent, folders, names in os.walk(self._path):
            for name in (name for name in (*folders, *names) if name.endswith(PART_SUFFIX)):
                with contextlib.suppress(OSError):  # deleted just now, or not ours
                    _forget(Path(parent, name))

    def concatenate(self, names: Sequence[str], target: str) -> bool:
        """Write a new file from the contents of others."""
        with tempfile.TemporaryFile(dir=self._with_parent(target).parent) as whole:
            for name in names:
                with self._at(name).open("rb") as file:
                    shutil.copyfileobj(file, whole)
            return self.write(target, whole, replaces=False)

    def claim(self, name: str, owner: str | None = None) -> "FolderClaim | None":
        """Lock a file of this name; the kernel releases it when the process ends, whoever its owner is."""
        path = self._with_parent(f"{CLAIMS}/{name}")
        lock = try_lock(path)
        return None if lock is None else FolderClaim(path, lock)

    def _locked(self) -> FileLock:
        """Return the lock of all updates; raises OSError if another process keeps it."""
        give_up_s = time.monotonic() + LOCK_TIMEOUT_S

        def pause() -> None:
            if time.monotonic() > give_up_s:
                raise OSError(errno.EAGAIN, f"another process keeps {LOCK_NAME} locked", self.uri)
            time.sleep(LOCK_INTERVAL_S)

        return wait_for_lock(self._with_parent(LOCK_NAME), pause)

    def _has(self, name: str, content: bytes) -> bool:
        path = self._at(name)
        with contextlib.suppress(OSError):
            return path.stat().st_size == len(content) and path.read_bytes() == content
        return False

    def _at(self, name: str) -> Path:
        check_name(self.uri, name)
        return self._path / name

    def _with_parent(self, name: str) -> Path:
        path = self._at(name)
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
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


def _write(path: Path, content: bytes | Path | BinaryIO, *, replaces: bool) -> bool:
    part = part_path(path)
    try:
        with _filled(part, content):
            sync(part)
            if replaces:
                part.replace(path)
            elif not _place_new(part, path):
                return False
            sync(path.parent)
            return True
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def _filled(part: Path, content: bytes | Path | BinaryIO) -> Iterator[None]:
    """Write a part that stays locked until the end of the block, so that no sweep deletes it."""
    if isinstance(content, Path):
        try:
            part.hardlink_to(content)
        except OSError:  # another file system, or one without links
            with content.open("rb") as source, _filled(part, source):
                yield
        else:
            yield
        return
    with part.open("xb") as file:
        with contextlib.suppress(OSError):  # the file system has no locks
            try_lock_descriptor(file.fileno())
        if isinstance(content, bytes):
            file.write(content)
        else:
            content.seek(0)
            shutil.copyfileobj(content, file)
        file.flush()
        yield


def _forget(part: Path) -> None:
    if time.time() - part.stat().st_mtime < FORGET_PARTS_AFTER_S:
        return
    if part.is_dir():
        shutil.rmtree(part, ignore_errors=True)
    elif (lock := try_lock(part)) is not None:
        with lock:
            part.unlink(missing_ok=True)


def _place_new(part: Path, path: Path) -> bool:
    try:
        path.hardlink_to(part)
    except FileExistsError:
        return False
    except OSError:  # the file system has no links
        if path.exists():
            return False
        part.replace(path)
    return True
