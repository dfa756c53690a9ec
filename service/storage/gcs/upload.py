"""Uploads of objects to GCS, each in place of exactly the version that a listing saw, so that two writers cannot mix.

Source: https://cloud.google.com/storage/docs/request-preconditions (if_generation_match)
"""

import io
from pathlib import Path

from google.api_core.exceptions import Forbidden, GoogleAPIError, PreconditionFailed, Unauthorized
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.cloud import storage
from requests import RequestException

from service.errors import AccessDenied, TransferFailed
from service.storage.location import GcsLocation
from service.storage.objects import ObjectInfo

TIMEOUT_S = 60


class GcsUploader:
    """Writes objects below one prefix of a bucket; import it only to write, since Google's client takes long to."""

    def __init__(self, location: GcsLocation, *, emulator_host: str | None) -> None:
        """Find the credentials.

        Raises:
            AccessDenied: there are none.
        """
        self._location = location
        self._client = _client(location, emulator_host)
        self._bucket = self._client.bucket(location.bucket)

    def __enter__(self) -> "GcsUploader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def upload(self, name: str, content: bytes | Path, *, replaces: ObjectInfo | None) -> bool:
        """Write one object; return whether no other writer was first.

        Args:
            name: below the prefix.
            content: the bytes, or the file that holds them.
            replaces: the version that the listing saw; None if it saw none.

        Raises:
            AccessDenied: the account may not write.
            TransferFailed: the bucket did not take the object.
        """
        blob = self._bucket.blob("/".join(part for part in (self._location.prefix, name) if part))
        try:
            with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
                blob.upload_from_file(
                    file,
                    size=len(content) if isinstance(content, bytes) else content.stat().st_size,
                    content_type="application/octet-stream",
                    if_generation_match=replaces.generation if replaces is not None else 0,
                    checksum="crc32c",
                    timeout=TIMEOUT_S,
                )
        except PreconditionFailed:
            return False
        except (Forbidden, Unauthorized) as error:
            remedy = "Grant storage.objects.create (and .delete, to replace a broken one), or run `levserve prewarm`."
            reason = f"HTTP {error.code}, {name} may not be written. {remedy}"
            raise AccessDenied(self._location.uri, reason) from error
        except (GoogleAPIError, GoogleAuthError, RequestException, OSError) as error:
            reason = f"it could not be written ({type(error).__name__})."
            raise TransferFailed(self._location.uri, name, reason) from error
        return True


def _client(location: GcsLocation, emulator_host: str | None) -> storage.Client:
    if emulator_host is not None:
        host = emulator_host if "://" in emulator_host else f"http://{emulator_host}"
        options = {"api_endpoint": host}
        return storage.Client(project="emulator", credentials=AnonymousCredentials(), client_options=options)
    try:
        return storage.Client()
    except DefaultCredentialsError as error:
        raise AccessDenied(
            location.uri, "there are no Google credentials here, so the bundle cannot be written."
        ) from error
