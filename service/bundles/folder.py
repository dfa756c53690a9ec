"""Bundles in a folder: visible only when complete, and safe against concurrent writers and kills at any moment.

FOLDER/
  3f2a…/             one bundle, created by one rename
  .3f2a….part/       a bundle being written, locked by its writer; unlocked leftovers are swept
  .3f2a….kept/       executables of a bundle that is still being compiled; see `partial`
"""

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from service.bundles.bundle import MANIFEST_NAME, check_owner
from service.bundles.partial import PARTIAL_SUFFIX, PartialBundle
from service.bundles.prefetch import PrefetchedBundle
from service.bundles.signature import UNSIGNED, Signer
from service.storage.files import FileLock, part_path, sync, try_lock_folder
from service.storage.objects import PART_SUFFIX

MAX_BUNDLES = 8  # one per model and engine shapes; each takes a few dozen megabytes
SWEEP_AFTER_S = 60
FORGET_AFTER_S = 7 * 24 * 3600  # for executables of an interrupted start that was never repeated


@runtime_checkable
class BundlePlace(Protocol):
    """A store of bundles by key."""

    uri: str

    def read(self, key: str, file: str) -> bytes | None:
        """Read one file of a bundle, or return None if it does not exist."""
        ...

    def write(self, key: str, files: Mapping[str, bytes]) -> bool:
        """Store a bundle unless it exists; the last file makes it visible. Return whether it was stored."""
        ...

    def discard(self, key: str) -> None:
        """Remove an unusable bundle so that a new one can take its key."""
        ...

    def close(self) -> None: ...


class BundleFolder:
    """A `BundlePlace` in a local or mounted folder."""

    def __init__(
        self,
        path: Path,
        *,
        is_private: bool = True,
        max_bundles: int = MAX_BUNDLES,
        prefetched: PrefetchedBundle | None = None,
    ) -> None:
        """Name a folder; nothing is read or written yet.

        Args:
            path: the folder, which need not exist yet.
            is_private: whether to refuse the folder if other users can write to it; an operator's folder is trusted.
            max_bundles: the maximum number of bundles; the least recently used are evicted.
            prefetched: files of the folder that have been read already.
        """
        self._max_bundles = max_bundles
        self.uri = str(path)
        self._path = path
        self._is_private = is_private
        self._prefetched = prefetched

    def read(self, key: str, file: str) -> bytes | None:
        """Read one file of a bundle, or return None if it does not exist.

        Raises:
            BundleRefused: other users can write to the folder, so its code is not trusted.
            OSError: the file cannot be read.
        """
        try:
            path = self._path / key / file
            data = self._prefetched.file(path) if self._prefetched is not None else None
            if data is None:
                data = path.read_bytes()
            if self._is_private:
                check_owner(self.uri, self._path, self._path / key)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if file == MANIFEST_NAME:
            with contextlib.suppress(OSError):  # a read-only folder cannot record its last use
                os.utime(self._path / key)
        return data

    def write(self, key: str, files: Mapping[str, bytes]) -> bool:
        """Store a bundle unless it exists or another writer is first; return whether it was stored.

        Raises:
            OSError: the folder cannot be written or is full.
        """

        def fill(part: Path) -> None:
            for name, data in files.items():
                _write_file(part / name, data)

        return self.write_with(key, fill)

    def write_with(self, key: str, fill: Callable[[Path], None]) -> bool:
        """Store the files that `fill` writes into a new folder, as `write` does.

        Raises:
            OSError: the folder cannot be written, or is full.
        """
        if (self._path / key).exists():
            return False
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sweep(key)
        part = part_path(self._path / key)
        part.mkdir(mode=0o700)
        try:
            with _locked(part):
                fill(part)
                for file in part.iterdir():
                    sync(file)
                sync(part)
                _rename_unless_there(part, self._path / key)
            sync(self._path)
            return True
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def discard(self, key: str) -> None:
        """Remove a bundle, atomically for all readers.

        Raises:
            OSError: the folder cannot be written.
        """
        trash = part_path(self._path / key)
        with contextlib.suppress(FileNotFoundError):
            (self._path / key).rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def partial(self, key: str, signer: Signer = UNSIGNED) -> PartialBundle:
        """Return the executables of a bundle that is still being compiled."""
        return PartialBundle(self._path, key, signer)

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def manifests(self) -> Iterator[bytes]:
        """Yield the manifests of all readable bundles, most recently used first."""
        for folder in self._by_last_use():
            with contextlib.suppress(OSError):
                yield (folder / MANIFEST_NAME).read_bytes()

    def _by_last_use(self) -> list[Path]:
        dated = []
        for folder in self._path.iterdir() if self._path.is_dir() else ():
            with contextlib.suppress(OSError):
                if not folder.name.startswith("."):
                    dated.append((folder.stat().st_mtime, folder))
        return [folder for _, folder in sorted(dated, reverse=True)]

    def _sweep(self, key: str) -> None:
        """Remove leftovers of killed writers, and the least recently used bundles other than `key`."""
        for part in self._path.glob(f".*{PART_SUFFIX}"):
            with contextlib.suppress(OSError):
                # A writer creates its folder a moment before it locks it.
                if time.time() - part.stat().st_mtime > SWEEP_AFTER_S:
                    with _locked(part):
                        shutil.rmtree(part, ignore_errors=True)
        for incomplete in self._path.glob(f".*{PARTIAL_SUFFIX}"):
            with contextlib.suppress(OSError):
                if time.time() - incomplete.stat().st_mtime > FORGET_AFTER_S:
                    shutil.rmtree(incomplete, ignore_errors=True)
        others = [folder.name for folder in self._by_last_use() if folder.name != key]
        for name in others[self._max_bundles - 1 :]:
            self.discard(name)


def _locked(folder: Path) -> FileLock:
    """Lock a folder; the kernel releases it when the process ends.

    Raises:
        BlockingIOError: another process holds it.
    """
    lock = try_lock_folder(folder)
    if lock is None:
        raise BlockingIOError(errno.EWOULDBLOCK, "is being written by another process", str(folder))
    return lock


def _rename_unless_there(part: Path, final: Path) -> None:
    try:
        part.rename(final)
    except OSError as error:  # another writer was first, and its bundle is equivalent
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise


def _write_file(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
