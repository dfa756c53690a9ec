"""HTTP to Google Cloud Storage's JSON API: credentials, time-outs, and what each failure means.

The client library is not used for it: its ranged reads check no sum and its time-outs watch no throughput, and its
import takes longer than reading a configuration. Neither is `requests`, except by the library that gets tokens.
Source: https://cloud.google.com/storage/docs/json_api/v1/status-codes
"""

import contextlib
import http.client
import json
import re
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlencode

import google.auth
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError

from service.errors import AccessDenied, CheckpointError, CheckpointNotFound, ObjectChanged, TransferFailed
from service.storage.gcs.keep_alive import Answer, KeepAlive
from service.storage.location import GcsLocation
from service.storage.retry import TransferLimits, TransientFault

ENDPOINT = "https://storage.googleapis.com"
READ_ONLY_SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
BROKEN_CONNECTION = (OSError, http.client.HTTPException, TransportError)
MAX_MESSAGE_BYTES = 64 * 1024
TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})


class GcsTransport:
    """Requests to one bucket; safe to use from several threads."""

    def __init__(self, location: GcsLocation, emulator_host: str | None, limits: TransferLimits) -> None:
        """Find the credentials; with `emulator_host` (`http://127.0.0.1:4443`) none are needed.

        Raises:
            AccessDenied: there are no credentials, with how to get some.
        """
        self._location = location
        self._account = ""
        self._endpoint = _with_scheme(emulator_host) if emulator_host else ENDPOINT
        self._credentials = None if emulator_host else self._find_credentials()
        self._token_lock = threading.Lock()
        self._connections = KeepAlive(
            self._endpoint,
            connect_timeout_s=limits.connect_timeout_s,
            read_timeout_s=limits.read_timeout_s,
            # An emulator is on this machine or beside it, and must not be looked for behind a proxy.
            is_proxy_allowed=not emulator_host,
        )

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    @contextlib.contextmanager
    def get(
        self,
        path: str,
        params: Mapping[str, str | int],
        headers: Mapping[str, str],
        version: tuple[str, int] | None = None,
    ) -> Iterator[Answer]:
        """Send one GET below the bucket; the body is not read yet.

        Args:
            path: what follows the bucket in the JSON API's address, quoted.
            params: the query.
            headers: besides the usual ones.
            version: the name and the generation of the object that is read; None for a listing.

        Raises:
            TransientFault: the connection broke, before or in the body, or the status says to try again.
            AccessDenied: 401 or 403.
            CheckpointNotFound: 404 of a listing: there is no such bucket.
            ObjectChanged: 404, 412 or 416 of an object: that version is gone.
            TransferFailed: any other status.
        """
        target = f"/storage/v1/b/{quote(self._location.bucket, safe='')}/{path}?{urlencode(params)}"
        with self._faults_named(), contextlib.ExitStack() as opened:
            authorized = self._authorized(target, headers)
            answer = opened.enter_context(self._connections.get(target, authorized))
            if answer.status == 401 and self._credentials is not None:
                opened.close()
                authorized = self._authorized(target, headers, is_refused=True)
                answer = opened.enter_context(self._connections.get(target, authorized))
            if answer.status not in (200, 206):
                raise self._refusal(answer, version)
            yield answer

    def _authorized(self, target: str, headers: Mapping[str, str], *, is_refused: bool = False) -> dict[str, str]:
        """Add an access token; another one if the last was refused."""
        if self._credentials is None:
            return dict(headers)
        from google.auth.transport.requests import Request

        added = dict(headers)
        with self._token_lock:
            if is_refused:
                self._credentials.refresh(Request())
            self._credentials.before_request(Request(), "GET", self._endpoint + target, added)
        return added

    @contextlib.contextmanager
    def _faults_named(self) -> Iterator[None]:
        try:
            yield
        except BROKEN_CONNECTION as error:
            raise TransientFault(_reason(error)) from error
        except GoogleAuthError as error:
            if error.retryable:  # the metadata server of a machine that has just started
                raise TransientFault("no access token came") from error
            raise self._denied(f"the credentials were not accepted ({type(error).__name__})") from error

    def _find_credentials(self) -> Any:
        try:
            credentials, _ = google.auth.default(scopes=[READ_ONLY_SCOPE])
        except DefaultCredentialsError as error:
            reason = _plain(str(error)).partition(". ")[0]
            raise AccessDenied(
                self._location.uri,
                f"there are no Google credentials here ({reason}). Run 'gcloud auth application-default login', or set "
                "GOOGLE_APPLICATION_CREDENTIALS to a key file; on Cloud Run and GKE give the service an account.",
            ) from error
        self._account = str(getattr(credentials, "service_account_email", ""))
        return credentials

    def _refusal(self, answer: Answer, version: tuple[str, int] | None) -> Exception:
        status = answer.status
        if status in TRANSIENT_STATUSES:
            return TransientFault(f"HTTP {status}", _retry_after_s(answer.headers.get("Retry-After")))
        if status in (401, 403):
            permission = "storage.objects.get" if version else "storage.objects.list"
            return self._denied(f"HTTP {status}, {permission} is not allowed{_said(answer)}")
        if status == 404 and version is None:
            return CheckpointNotFound(self._location.uri, f"there is no bucket {self._location.bucket!r}.")
        if status in (404, 412, 416) and version is not None:
            return ObjectChanged(self._location.uri, *version)
        return TransferFailed(self._location.uri, version[0] if version else "listing", f"HTTP {status}{_said(answer)}")

    def _denied(self, reason: str) -> CheckpointError:
        account = self._account if "@" in self._account else "ACCOUNT"
        return AccessDenied(
            self._location.uri,
            f"{reason}. Let the service's account read the bucket (storage.objects.list, storage.objects.get): gcloud "
            f"storage buckets add-iam-policy-binding gs://{self._location.bucket} --member=serviceAccount:{account} "
            "--role=roles/storage.objectViewer",
        )


def _with_scheme(host: str) -> str:
    return (host if "://" in host else f"http://{host}").rstrip("/")


def _reason(error: Exception) -> str:
    # An error's own text may hold the whole address, and its query may hold more than an operator should read.
    if isinstance(error, TimeoutError):
        return "no bytes came in time"
    if isinstance(error, ssl.SSLError):
        return "the TLS handshake failed"
    return f"the connection broke ({type(error).__name__})"


def _said(answer: Answer) -> str:
    # One short line of the server's own words: they name the account and the permission, never a token.
    try:
        message = str(json.loads(answer.read(MAX_MESSAGE_BYTES))["error"]["message"])
    except (ValueError, KeyError, TypeError, *BROKEN_CONNECTION):
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
