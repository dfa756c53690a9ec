"""Bundles in a bucket: reads are pinned to generations and verified, writes are conditional.

Files are named after a digest of their content and the manifest is written last, so a bundle is either complete or
absent. Writing needs storage.objects.create; for a read-only service, `levserve prewarm` writes the bundles.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from service.errors import CheckpointNotFound
from service.storage import crc32c
from service.storage.gcs.read import GcsSource
from service.storage.location import GcsLocation
from service.storage.objects import ObjectInfo
from service.storage.retry import TransferLimits

if TYPE_CHECKING:
    from service.storage.gcs.upload import GcsUploader

logger = logging.getLogger(__name__)

# A start must not wait long for a bundle, since it can always compile.
READ_DEADLINE_S = 60.0


class BundleBucket:
    """A `BundlePlace` below one prefix of a bucket."""

    def __init__(self, location: GcsLocation, *, emulator_host: str | None) -> None:
        """Name a place; nothing is read yet.

        Args:
            location: the bucket and prefix.
            emulator_host: STORAGE_EMULATOR_HOST.
        """
        self.uri = location.uri
        self._location = location
        self._emulator_host = emulator_host
        self._listings: dict[str, dict[str, ObjectInfo]] = {}  # by key
        self._sources: dict[str, GcsSource] = {}
        self._discarded: set[str] = set()

    def read(self, key: str, file: str) -> bytes | None:
        """Read one file of a bundle, or return None if it does not exist.

        Raises:
            CheckpointError: the bucket cannot be read.
        """
        info = self._listing(key).get(file)
        return None if info is None else self._sources[key].read(info)

    def write(self, key: str, files: Mapping[str, bytes]) -> bool:
        """Store a bundle unless it exists or another writer is first; return whether it was stored.

        Args:
            key: the bundle's name.
            files: the files by name, the manifest last.

        Raises:
            AccessDenied: the account may not write, or there are no credentials.
            TransferFailed: the upload failed.
        """
        listing = self._listing(key)
        *contents, manifest = files
        if manifest in listing and key not in self._discarded:
            return False
        with self._uploader() as uploader:
            for name in contents:
                present = listing.get(name)
                if present is None or present.crc32c != crc32c.to_text(crc32c.extend(0, files[name])):
                    uploader.upload(f"{key}/{name}", files[name], replaces=present)
            return uploader.upload(f"{key}/{manifest}", files[manifest], replaces=listing.get(manifest))

    def write_folder(self, key: str, folder: Path, marker: str) -> bool:
        """Store the files of a folder unless they exist; `marker` is written last and makes them visible.

        Raises:
            AccessDenied: the account may not write, or there are no credentials.
            TransferFailed: the upload failed.
        """
        listing = self._listing(key)
        if marker in listing:
            return False
        with self._uploader() as uploader:
            for path in sorted(folder.iterdir(), key=lambda path: path.name == marker):
                uploader.upload(f"{key}/{path.name}", path, replaces=listing.get(path.name))
        return True

    def discard(self, key: str) -> None:
        """Let the next `write` replace the bundle; until then others see, and refuse, the old one."""
        self._discarded.add(key)

    def close(self) -> None:
        for source in self._sources.values():
            source.close()

    def _listing(self, key: str) -> dict[str, ObjectInfo]:
        if key not in self._listings:
            prefix = "/".join(part for part in (self._location.prefix, key) if part)
            location = GcsLocation(self._location.bucket, prefix)
            limits = TransferLimits(deadline_s=READ_DEADLINE_S)
            source = self._sources[key] = GcsSource(location, emulator_host=self._emulator_host, limits=limits)
            try:
                self._listings[key] = {info.name: info for info in source.list()}
            except CheckpointNotFound:  # nothing below the prefix
                self._listings[key] = {}
        return self._listings[key]

    def _uploader(self) -> "GcsUploader":
        from service.storage.gcs.upload import GcsUploader  # imports Google's client, which only writers need

        return GcsUploader(self._location, emulator_host=self._emulator_host)
