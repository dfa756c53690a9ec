"""A client for the JSON API of Google Cloud Storage: credentials and error handling.

Google's client library is not used: its ranged reads verify no checksum, its timeouts ignore throughput, and importing
it takes longer than reading a configuration. `requests` is used only by google-auth to fetch tokens.
Source: https://cloud.google.com/storage/docs/json_api/v1/status-codes
"""

import json
import re
import threading
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlencode

import google.auth
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError

from service.errors import AccessDenied, CheckpointError, CheckpointNotFound, ObjectChanged, TransferFailed
from service.storage.gcs.connections import ConnectionPool, Response, connection_fault
from service.storage.location import GcsLocation
from service.storage.retry import TransferLimits, TransientFault

ENDPOINT = "https://storage.googleapis.com"
READ_ONLY_SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
MAX_MESSAGE_BYTES = 64 * 1024
TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})


class GcsTransport:
    """Requests to one bucket; safe to use from several threads."""

    def __init__(self, location: GcsLocation, emulator_host: str | None, limits: TransferLimits) -> None:
        """Find the credentials; an `emulator_host` (`http://127.0.0.1:4443`) needs none.

        Raises:
            AccessDenied: there are no credentials; the message says how to get them.
        """
        self._location = location
        self._account = ""
        self._endpoint = _with_scheme(emulator_host) if emulator_host else ENDPOINT
        self._credentials = None if emulator_host else self._find_credentials()
        self._token_lock = threading.Lock()
        self._connections = ConnectionPool(
            self._endpoint,
            connect_timeout_s=limits.connect_timeout_s,
            read_timeout_s=limits.read_timeout_s,
            # An emulator is on this machine or next to it, never behind a proxy.
            is_proxy_allowed=not emulator_host,
        )

    def close(self) -> None:
        self._connections.close()

    def get(
        self,
        path: str,
        params: Mapping[str, str | int],
        headers: Mapping[str, str],
        version: tuple[str, int] | None = None,
    ) -> Response:
        """Send one GET below the bucket; the caller reads and closes the response.

        Args:
            path: the quoted part of the URL after the bucket; empty for the bucket itself.
            params: the query parameters.
            headers: additional headers.
            version: name and generation of the object to read; None for a LIST.

        Raises:
            TransientFault: the connection broke, or the status asks for a retry.
            AccessDenied: 401 or 403.
            CheckpointNotFound: a LIST returned 404: there is no such bucket.
            ObjectChanged: an object returned 404, 412 or 416: that version is gone.
            TransferFailed: any other status.
        """
        bucket = quote(self._location.bucket, safe="")
        target = f"/storage/v1/b/{'/'.join(part for part in (bucket, path) if part)}?{urlencode(params)}"
        response = self._connections.get(target, self._authorized(target, headers))
        if response.status == 401 and self._credentials is not None:
            response.close()
            response = self._connections.get(target, self._authorized(target, headers, is_refused=True))
        if response.status not in (200, 206):
            with response:
                raise self._refusal(response, version)
        return response

    def _authorized(self, target: str, headers: Mapping[str, str], *, is_refused: bool = False) -> dict[str, str]:
        """Add an access token, refreshed if the server refused the last one."""
        if self._credentials is None:
            return dict(headers)
        from google.auth.transport.requests import Request

        added = dict(headers)
        try:
            with self._token_lock:
                if is_refused:
                    self._credentials.refresh(Request())
                self._credentials.before_request(Request(), "GET", self._endpoint + target, added)
        except (OSError, TransportError) as error:
            raise connection_fault(error) from error
        except GoogleAuthError as error:
            if error.retryable:  # the metadata server of a freshly booted machine
                raise TransientFault("no access token was issued") from error
            raise self._denied(f"the credentials were not accepted ({type(error).__name__})") from error
        return added

    def _find_credentials(self) -> Any:
        try:
            credentials, _ = google.auth.default(scopes=[READ_ONLY_SCOPE])
        except DefaultCredentialsError as error:
            reason = _plain(str(error)).partition(". ")[0]
            raise AccessDenied(
                self._location.uri,
                f"no Google credentials were found ({reason}). Run 'gcloud auth application-default login', or set "
                "GOOGLE_APPLICATION_CREDENTIALS to a key file; on Cloud Run and GKE give the service an account.",
            ) from error
        self._account = str(getattr(credentials, "service_account_email", ""))
        return credentials

    def _refusal(self, response: Response, version: tuple[str, int] | None) -> Exception:
        status = response.status
        if status in TRANSIENT_STATUSES:
            retry_after_s = _retry_after_s(response.headers.get("Retry-After"))
            return TransientFault(f"HTTP {status}", retry_after_s, is_outage=True)
        if status in (401, 403):
            permission = "storage.objects.get" if version else "storage.objects.list"
            return self._denied(f"HTTP {status}, {permission} is not allowed{_server_message(response)}")
        if status == 404 and version is None:
            return CheckpointNotFound(self._location.uri, f"there is no bucket {self._location.bucket!r}.")
        if status in (404, 412, 416) and version is not None:
            return ObjectChanged(self._location.uri, *version)
        return TransferFailed(
            self._location.uri, version[0] if version else "listing", f"HTTP {status}{_server_message(response)}"
        )

    def _denied(self, reason: str) -> CheckpointError:
        account = self._account if "@" in self._account else "ACCOUNT"
        return AccessDenied(
            self._location.uri,
            f"{reason}. Let the service's account read the bucket (storage.objects.list, storage.objects.get): gcloud "
            f"storage buckets add-iam-policy-binding gs://{self._location.bucket} --member=serviceAccount:{account} "
            "--role=roles/storage.objectViewer",
        )


def _with_scheme(host: str) -> str:
    return host if "://" in host else f"http://{host}"


def _server_message(response: Response) -> str:
    # The server's message names the account and the permission, never a token.
    try:
        message = str(json.loads(response.read(MAX_MESSAGE_BYTES))["error"]["message"])
    except (ValueError, KeyError, TypeError, TransientFault):
        return ""
    return f" ({_plain(message)})" if message else ""


def _plain(text: str) -> str:
    return re.sub(r"[^ -~]+", " ", text)[:200].rstrip(". ")


def _retry_after_s(header: str | None) -> float | None:
    # Source: RFC 9110 section 10.2.3: seconds, or a date.
    if not header:
        return None
    if header.isdecimal():
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return None
