"""Conditional writes to GCS: each replaces exactly the generation that a listing saw, so writers cannot interleave.

Source: https://cloud.google.com/storage/docs/request-preconditions (if_generation_match)
"""

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

from google.api_core.exceptions import Forbidden, GoogleAPIError, NotFound, PreconditionFailed, Unauthorized
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.cloud import storage
from requests import RequestException

from service.errors import AccessDenied, TransferFailed
from service.storage.location import GcsLocation
from service.storage.objects import ObjectInfo

TIMEOUT_S = 60


class GcsUploader:
    """Writes objects below one prefix of a bucket. Import it only to write: Google's client is slow to import."""

    def __init__(self, location: GcsLocation, *, emulator_host: str | None) -> None:
        """Find the credentials.

        Raises:
            AccessDenied: there are no credentials.
        """
        self._location = location
        self._client = _client(location, emulator_host)
        self._bucket = self._client.bucket(location.bucket)

    def __enter__(self) -> "GcsUploader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def upload(self, name: str, content: bytes | Path | BinaryIO, *, replaces: ObjectInfo | None) -> bool:
        """Write one object; return False if another writer was first.

        Args:
            name: the object's name below the prefix.
            content: the bytes, a path, or an open file.
            replaces: the version to replace; None if there must be none.

        Raises:
            AccessDenied: the account may not write.
            TransferFailed: the upload failed.
        """
        try:
            with self._naming_errors(name, PreconditionFailed), _opened(content) as file:
                self._blob(name).upload_from_file(
                    file,
                    rewind=True,
                    size=file.seek(0, os.SEEK_END),
                    content_type="application/octet-stream",
                    if_generation_match=replaces.generation if replaces is not None else 0,
                    checksum="crc32c",
                    timeout=TIMEOUT_S,
                )
        except PreconditionFailed:
            return False
        return True

    def copy(self, name: str, target: str) -> bool:
        """Copy one object within the bucket; return whether it existed.

        Raises:
            AccessDenied, TransferFailed: see `upload`.
        """
        try:
            with self._naming_errors(target, NotFound):
                self._bucket.copy_blob(self._blob(name), self._bucket, self._blob(target).name, timeout=TIMEOUT_S)
        except NotFound:
            return False
        return True

    def compose(self, names: Sequence[str], target: str) -> bool:
        """Write a new object from the contents of at most 32 others; return False if another writer was first.

        Raises:
            AccessDenied, TransferFailed: see `upload`; also if one of the objects does not exist.
        """
        try:
            with self._naming_errors(target, PreconditionFailed):
                blobs = [self._blob(name) for name in names]
                self._blob(target).compose(blobs, timeout=TIMEOUT_S, if_generation_match=0)
        except PreconditionFailed:
            return False
        return True

    def delete(self, name: str) -> None:
        """Delete one object if it exists.

        Raises:
            AccessDenied, TransferFailed: see `upload`.
        """
        try:
            with self._naming_errors(name, NotFound):
                self._blob(name).delete(timeout=TIMEOUT_S)
        except NotFound:
            return

    def _blob(self, name: str) -> storage.Blob:
        return self._bucket.blob("/".join(part for part in (self._location.prefix, name) if part))

    @contextmanager
    def _naming_errors(self, name: str, expected: type[GoogleAPIError]) -> Iterator[None]:
        """Translate the errors of Google's client, except the one that the caller expects."""
        try:
            yield
        except expected:
            raise
        except (Forbidden, Unauthorized) as error:
            remedy = (
                "Grant storage.objects.create (and .delete, to replace one), such as with roles/storage.objectUser."
            )
            reason = f"HTTP {error.code}, {name} may not be written. {remedy}"
            raise AccessDenied(self._location.uri, reason) from error
        except (GoogleAPIError, GoogleAuthError, RequestException, OSError) as error:
            reason = f"it could not be written ({type(error).__name__})."
            raise TransferFailed(self._location.uri, name, reason) from error


def _opened(content: bytes | Path | BinaryIO) -> AbstractContextManager[BinaryIO]:
    if isinstance(content, bytes):
        return io.BytesIO(content)
    return content.open("rb") if isinstance(content, Path) else nullcontext(content)


def _client(location: GcsLocation, emulator_host: str | None) -> storage.Client:
    if emulator_host is not None:
        host = emulator_host if "://" in emulator_host else f"http://{emulator_host}"
        options = {"api_endpoint": host}
        return storage.Client(project="emulator", credentials=AnonymousCredentials(), client_options=options)
    try:
        return storage.Client()
    except DefaultCredentialsError as error:
        raise AccessDenied(location.uri, "no Google credentials were found, so nothing can be written.") from error
