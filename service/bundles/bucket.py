"""Bundles in a bucket: read like a checkpoint, by generation and summed; written so that two writers cannot mix.

Every file is named after its content and the manifest comes last, so a bundle is either whole or not there. Writing
needs storage.objects.create; a service that may only read is given bundles by `levserve prewarm`.
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

# A start must not wait long for a bundle: compiling is always possible.
READ_DEADLINE_S = 60.0


class BundleBucket:
    """Bundles below one prefix of a bucket; a `BundlePlace`."""

    def __init__(self, location: GcsLocation, *, emulator_host: str | None) -> None:
        """Name a place; nothing is read yet.

        Args:
            location: where the bundles lie.
            emulator_host: STORAGE_EMULATOR_HOST.
        """
        self.uri = location.uri
        self._location = location
        self._emulator_host = emulator_host
        self._listings: dict[str, dict[str, ObjectInfo]] = {}  # by key
        self._sources: dict[str, GcsSource] = {}
        self._discarded: set[str] = set()

    def read(self, key: str, file: str) -> bytes | None:
        """Read one file of a bundle; None if it is not there.

        Raises:
            CheckpointError: the bucket cannot be read.
        """
        info = self._listing(key).get(file)
        return None if info is None else self._sources[key].read(info)

    def write(self, key: str, files: Mapping[str, bytes]) -> bool:
        """Store a bundle unless it is there, or another writer is first; return whether it was stored.

        Args:
            key: the bundle's name.
            files: by name; the last one is the manifest.

        Raises:
            AccessDenied: the account may not write, or there is none.
            TransferFailed: the bucket did not take it.
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
        """Store the files of a folder unless they are there; `marker` is the last, and makes them visible.

        Raises:
            AccessDenied: the account may not write, or there is none.
            TransferFailed: the bucket did not take it.
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
        """Close the connections."""
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
        from service.storage.gcs.upload import GcsUploader  # imports Google's client, which only a writer needs

        return GcsUploader(self._location, emulator_host=self._emulator_host)
