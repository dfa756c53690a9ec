"""Bundles in a folder of this machine, or in one that machines share.

FOLDER/
  3f2a…/                            one bundle
    decode-…-8c1d.executable
    decode-…-8c1d.executable.json   while the bundle is incomplete: the executable's entry; see `partial`
    manifest.json                   written last
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import override

from service.bundles.bundle import MANIFEST_NAME, check_owner
from service.bundles.partial import PartialBundle
from service.bundles.prefetch import NOTHING, PrefetchedBundle
from service.bundles.signature import UNSIGNED, Signer
from service.storage.entries import FolderEntries

MAX_BUNDLES = 8  # one per model and engine shapes; each takes a few dozen megabytes


class BundleFolder(FolderEntries):
    """Bundles by key, whose owner is checked."""

    def __init__(self, path: Path, *, is_private: bool = True, prefetched: PrefetchedBundle = NOTHING) -> None:
        """Name a folder; nothing is read or written yet.

        Args:
            path: the folder, which need not exist yet.
            is_private: whether to refuse the folder if other users can write to it; an operator's folder is trusted.
            prefetched: files of the folder that have been read already.
        """
        super().__init__(path, MANIFEST_NAME, max_entries=MAX_BUNDLES, leftovers="*/*.executable")
        self._is_private = is_private
        self._prefetched = prefetched

    @override
    def read(self, key: str, file: str) -> bytes | None:
        """Read one file of a bundle, or return None if it does not exist.

        Raises:
            BundleRefused: other users can write to the folder, so its code is not trusted.
            OSError: the file cannot be read.
        """
        path = self.path / key / file
        data = self._prefetched.file(path) or super().read(key, file)
        if data is None:
            return None
        if self._is_private:
            check_owner(self.uri, self.path, self.path / key)
        if file == MANIFEST_NAME:
            with contextlib.suppress(OSError):  # a read-only folder cannot record its last use
                os.utime(path)
        return data

    def partial(self, key: str, signer: Signer = UNSIGNED) -> PartialBundle:
        """Return the executables of a bundle that is still being compiled."""
        return PartialBundle(self.path, key, signer)

    def manifests(self) -> Iterator[bytes]:
        """Yield the manifests of all readable bundles, most recently used first."""
        for key in self.by_last_use():
            with contextlib.suppress(OSError):
                yield (self.path / key / MANIFEST_NAME).read_bytes()
