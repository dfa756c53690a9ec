"""Entries of several files in a store, each visible only once it is complete: its marker is written last.

The other files of an entry must not depend on who writes it, so that concurrent writers cannot spoil each other's.
"""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import override

from service.storage.folder_store import FolderStore
from service.storage.store import ObjectStore

FORGET_AFTER_S = 7 * 24 * 3600  # for what an interrupted writer left and nobody continued


class Entries:
    """Entries by key, in a folder or a bucket. Every method raises OSError or CheckpointError if the store fails."""

    def __init__(self, store: ObjectStore, marker: str) -> None:
        """Name the store; nothing is read yet. `marker` is the name of the file that completes an entry."""
        self.uri = store.uri
        self.store = store
        self.marker = marker

    def read(self, key: str, file: str) -> bytes | None:
        """Read one file of an entry, or return None if it does not exist."""
        return self.store.read(f"{key}/{file}")

    def holds(self, key: str) -> bool:
        """Return whether there is a complete entry."""
        return self.store.read(f"{key}/{self.marker}") is not None

    def write(self, key: str, files: Mapping[str, bytes | Path], *, replaces: bool = False) -> bool:
        """Store an entry; return whether it was stored.

        Args:
            key: the key of the entry.
            files: its files by name.
            replaces: whether it takes the place of one that exists; otherwise the first writer's stays.
        """
        if not replaces and self.holds(key):
            return False
        for name, content in files.items():
            if name != self.marker:
                self.store.write(f"{key}/{name}", content)
        return self.store.write(f"{key}/{self.marker}", files[self.marker], replaces=replaces)

    def discard(self, key: str) -> None:
        """Remove an entry, so that a new one can take its key."""
        self.store.delete(f"{key}/{self.marker}")
        self.store.delete_folder(key)

    def close(self) -> None:
        self.store.close()


class FolderEntries(Entries):
    """Entries in a local or mounted folder, of which the least recently used are evicted."""

    def __init__(self, path: Path, marker: str, *, max_entries: int, leftovers: str) -> None:
        """Name a folder, which need not exist yet.

        Args:
            path: the folder.
            marker: the name of the file that completes an entry.
            max_entries: the maximum number of complete entries.
            leftovers: a glob pattern of what interrupted writers leave; what lies in other folders is never deleted.
        """
        super().__init__(FolderStore(path), marker)
        self.path = path
        self._max_entries, self._leftovers = max_entries, leftovers

    @override
    def write(self, key: str, files: Mapping[str, bytes | Path], *, replaces: bool = False) -> bool:
        """Store an entry as `Entries.write`, and delete other files that lie in it, such as an interrupted writer's."""
        self._evict(key)
        is_stored = super().write(key, files, replaces=replaces)
        if is_stored:
            for name in self.store.list(key).keys() - {f"{key}/{name}" for name in files}:
                self.store.delete(name)
        return is_stored

    def by_last_use(self) -> list[str]:
        """Return the keys of all complete entries, most recently used first; the marker's mtime is the last use."""
        dated = []
        for marker in self.path.glob(f"*/{self.marker}"):
            with contextlib.suppress(OSError):
                dated.append((marker.stat().st_mtime, marker.parent.name))
        return [key for _, key in sorted(dated, reverse=True)]

    def _evict(self, key: str) -> None:
        complete = self.by_last_use()
        others = [other for other in complete if other != key]
        incomplete = {path.relative_to(self.path).parts[0] for path in self.path.glob(self._leftovers)}
        for name in (*others[self._max_entries - 1 :], *filter(self._is_forgotten, incomplete - {key, *complete})):
            self.discard(name)

    def _is_forgotten(self, name: str) -> bool:
        with contextlib.suppress(OSError):
            return time.time() - (self.path / name).stat().st_mtime > FORGET_AFTER_S
        return False
