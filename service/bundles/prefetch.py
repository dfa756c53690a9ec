"""The bundle that was used last, read and summed before it is known which one is needed: mostly it is that.

A start knows its bundle's key when jax is imported and has found the devices; until then a processor is idle. Nothing
that is read here is believed: a manifest has the last word on every file, and the folder's owner is looked at on use.
"""

import hashlib
import threading
from pathlib import Path


class BundleAhead:
    """Files of one folder's last bundle, as far as they are there; needs no jax."""

    def __init__(self, folder: Path) -> None:
        """Begin to read in the background."""
        self._files: dict[Path, bytes] = {}
        self._sums: dict[int, str] = {}  # by the identity of the bytes above
        threading.Thread(target=self._read, args=(folder,), name="bundle-ahead", daemon=True).start()

    def file(self, path: Path) -> bytes | None:
        """Return a file's bytes if they have been read."""
        return self._files.get(path)

    def sha256(self, data: bytes) -> str:
        """Return the sum of some bytes, which is known of those that came out of `file`."""
        known = self._sums.get(id(data))
        return known if known is not None else hashlib.sha256(data).hexdigest()

    def _read(self, folder: Path) -> None:
        try:
            bundles = [path for path in folder.iterdir() if not path.name.startswith(".")]
            last = max(bundles, key=lambda path: path.stat().st_mtime, default=None)
            for path in last.iterdir() if last is not None else ():
                data = path.read_bytes()
                self._sums[id(data)] = hashlib.sha256(data).hexdigest()
                self._files[path] = data
        except OSError:
            return  # whoever needs the bundle will find out, and say so
