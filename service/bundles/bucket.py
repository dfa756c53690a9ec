"""Bundles in a bucket: read like a checkpoint, by generation and summed; written so that two writers cannot mix.

Every file is named after its content and the manifest comes last, so a bundle is either whole or not there. Writing
needs storage.objects.create; a service that may only read is given bundles by `levserve prewarm`.
Source: https://cloud.google.com/storage/docs/request-preconditions (if_generation_match)
"""

import contextlib
import io
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from service.errors import AccessDenied, CheckpointNotFound, TransferFailed
from service.storage import crc32c
from service.storage.gcs.read import GcsSource
from service.storage.location import GcsLocation
from service.storage.objects import ObjectInfo
from service.storage.retry import TransferLimits

logger = logging.getLogger(__name__)

# A start must not wait long for a bundle: compiling is always possible.
READ_DEADLINE_S = 60.0
WRITE_TIMEOUT_S = 60.0


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
        with contextlib.closing(self._client()) as client:
            bucket = client.bucket(self._location.bucket)
            for name in contents:
                present = listing.get(name)
                if present is None or present.crc32c != crc32c.to_text(crc32c.extend(0, files[name])):
                    self._upload(bucket, f"{key}/{name}", files[name], present)
            return self._upload(bucket, f"{key}/{manifest}", files[manifest], listing.get(manifest))

    def write_folder(self, key: str, folder: Path, marker: str) -> bool:
        """Store the files of a folder unless they are there; `marker` is the last, and makes them visible.

        Raises:
            AccessDenied: the account may not write, or there is none.
            TransferFailed: the bucket did not take it.
        """
        listing = self._listing(key)
        if marker in listing:
            return False
        with contextlib.closing(self._client()) as client:
            bucket = client.bucket(self._location.bucket)
            for path in sorted(folder.iterdir(), key=lambda path: path.name == marker):
                self._upload(bucket, f"{key}/{path.name}", path, listing.get(path.name))
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

    def _client(self) -> Any:
        from google.auth.credentials import AnonymousCredentials
        from google.auth.exceptions import DefaultCredentialsError
        from google.cloud import storage

        try:
            if self._emulator_host is None:
                return storage.Client()
        except DefaultCredentialsError as error:
            raise AccessDenied(
                self.uri, "there are no Google credentials here, so the bundle cannot be written."
            ) from error
        host = self._emulator_host if "://" in self._emulator_host else f"http://{self._emulator_host}"
        return storage.Client(
            project="emulator", credentials=AnonymousCredentials(), client_options={"api_endpoint": host}
        )

    def _upload(self, bucket: Any, name: str, content: bytes | Path, present: ObjectInfo | None) -> bool:
        """Write one object in place of the version that the listing saw; return whether nobody else was first."""
        from google.api_core.exceptions import Forbidden, GoogleAPIError, PreconditionFailed, Unauthorized
        from google.auth.exceptions import GoogleAuthError
        from requests import RequestException

        blob = bucket.blob("/".join(part for part in (self._location.prefix, name) if part))
        generation = present.generation if present is not None else 0
        try:
            with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
                blob.upload_from_file(
                    file,
                    size=len(content) if isinstance(content, bytes) else content.stat().st_size,
                    content_type="application/octet-stream",
                    if_generation_match=generation,
                    checksum="crc32c",
                    timeout=WRITE_TIMEOUT_S,
                )
        except PreconditionFailed:
            return False
        except (Forbidden, Unauthorized) as error:
            remedy = "Grant storage.objects.create (and .delete, to replace a broken one), or run `levserve prewarm`."
            raise AccessDenied(self.uri, f"HTTP {error.code}, {name} may not be written. {remedy}") from error
        except (GoogleAPIError, GoogleAuthError, RequestException, OSError) as error:
            raise TransferFailed(self.uri, name, f"it could not be written ({type(error).__name__}).") from error
        return True
