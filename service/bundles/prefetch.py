"""Speculative reading of the most recently used bundle, before the key of the needed one is known.

A start knows its bundle's key only after jax is imported and has found the devices; until then a CPU core is idle.
Nothing read here is trusted: every file is verified against the manifest, and the folder's owner is checked on use.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from service.bundles.bundle import MANIFEST_NAME


@dataclass(frozen=True)
class PrefetchedBundle:
    """The files of one bundle and their checksums; empty if there is no bundle."""

    files: Mapping[Path, bytes] = field(default_factory=dict)
    sums: Mapping[int, str] = field(default_factory=dict)  # sha256 in hexadecimal, by the identity of the bytes above

    def file(self, path: Path) -> bytes | None:
        """Return a file's bytes, or None if it was not read."""
        return self.files.get(path)

    def sha256(self, data: bytes) -> str:
        """Return the SHA-256 of bytes, which is precomputed for bytes from `file`."""
        known = self.sums.get(id(data))
        return known if known is not None else hashlib.sha256(data).hexdigest()


NOTHING = PrefetchedBundle()


def prefetch_bundle(folder: Path) -> PrefetchedBundle:
    """Read the most recently used bundle of a folder, as far as possible."""
    files: dict[Path, bytes] = {}
    sums: dict[int, str] = {}
    try:
        last = max(folder.glob(f"*/{MANIFEST_NAME}"), key=lambda path: path.stat().st_mtime, default=None)
        for path in last.parent.iterdir() if last is not None else ():
            data = path.read_bytes()
            sums[id(data)] = hashlib.sha256(data).hexdigest()
            files[path] = data
    except OSError:
        pass  # the lookup reads the folder again and reports errors
    return PrefetchedBundle(files, sums)
