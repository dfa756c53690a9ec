"""HTTP to Google Cloud Storage's JSON API: credentials, time-outs, and what each failure means.

The client library is not used for it: its ranged reads check no sum and its time-outs watch no throughput, and its
import takes longer than reading a configuration.
Source: https://cloud.google.com/storage/docs/json_api/v1/status-codes
"""

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from urllib.parse import quote

import google.auth
import requests
import urllib3
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
from google.auth.transport.requests import AuthorizedSession
from requests.adapters import HTTPAdapter

from service.checkpoint.location import GcsLocation
from service.checkpoint.transfer import TransferLimits, TransientFault
from service.errors import AccessDenied, CheckpointError, CheckpointNotFound, ObjectChanged, TransferFailed

ENDPOINT = "https://storage.googleapis.com"
READ_ONLY_SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
BROKEN_CONNECTION = (requests.RequestException, urllib3.exceptions.HTTPError, TransportError)
TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})


class GcsTransport:
    """Requests to one bucket; safe to use from several threads."""

    def __init__(self, location: GcsLocation, emulator_host: str | None, limits: TransferLimits) -> None:
        """Find the credentials; with `emulator_host` (`http://127.0.0.1:4443`) none are needed.

        Raises:
            AccessDenied: there are no credentials, with how to get some.
        """
        self._location = location
        self._timeouts_s = (limits.connect_timeout_s, limits.read_timeout_s)
        self._account = ""
        self._endpoint = _with_scheme(emulator_host) if emulator_host else ENDPOINT
        self._session = requests.Session() if emulator_host else self._authorized_session()
        # An emulator is on this machine or beside it, and must not be looked for behind a proxy.
        self._session.trust_env = not emulator_host
        adapter = HTTPAdapter(pool_connections=1, pool_maxsize=limits.num_workers)
        self._session.mount(self._endpoint, adapter)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    @contextlib.contextmanager
    def get(
        self,
        path: str,
        params: Mapping[str, str | int],
        headers: Mapping[str, str],
        version: tuple[str, int] | None = None,
    ) -> Iterator[requests.Response]:
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
        url = f"{self._endpoint}/storage/v1/b/{quote(self._location.bucket, safe='')}/{path}"
        with (
            self._faults_named(),
            self._session.get(
                url,
                params=dict(params),
                headers=dict(headers),
                timeout=self._timeouts_s,
                stream=True,
                allow_redirects=False,
            ) as response,
        ):
            if response.status_code not in (200, 206):
                raise self._refusal(response, version)
            yield response

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

    def _authorized_session(self) -> requests.Session:
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
        return AuthorizedSession(credentials)

    def _refusal(self, response: requests.Response, version: tuple[str, int] | None) -> Exception:
        status = response.status_code
        if status in TRANSIENT_STATUSES:
            return TransientFault(f"HTTP {status}", _retry_after_s(response.headers.get("Retry-After")))
        if status in (401, 403):
            permission = "storage.objects.get" if version else "storage.objects.list"
            return self._denied(f"HTTP {status}, {permission} is not allowed{_said(response)}")
        if status == 404 and version is None:
            return CheckpointNotFound(self._location.uri, f"there is no bucket {self._location.bucket!r}.")
        if status in (404, 412, 416) and version is not None:
            return ObjectChanged(self._location.uri, *version)
        return TransferFailed(
            self._location.uri, version[0] if version else "listing", f"HTTP {status}{_said(response)}"
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
    return (host if "://" in host else f"http://{host}").rstrip("/")


def _reason(error: Exception) -> str:
    # The library's own text holds the whole address, and its query may hold more than an operator should read.
    if isinstance(error, requests.Timeout | urllib3.exceptions.TimeoutError):
        return "no bytes came in time"
    if isinstance(error, requests.exceptions.SSLError | urllib3.exceptions.SSLError):
        return "the TLS handshake failed"
    return f"the connection broke ({type(error).__name__})"


def _said(response: requests.Response) -> str:
    # One short line of the server's own words: they name the account and the permission, never a token.
    try:
        message = str(response.json()["error"]["message"])
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
