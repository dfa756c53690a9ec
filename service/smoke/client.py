"""HTTP for the checks, with Python's own client: small, no proxy, no retry, each request on a connection of its own.

The clock of a request starts once the connection stands, so a latency is the server's and not the TLS handshake's.
"""

import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from service.smoke.failures import CheckFailed, Reply, Unreachable

USER_AGENT = "levserve-smoke"
CAUSES = (
    (ConnectionRefusedError, "connection refused"),
    (http.client.RemoteDisconnected, "the connection was closed before an answer"),
    (http.client.IncompleteRead, "the connection broke off in the middle of the answer"),
    (ConnectionError, "the connection broke"),
    (socket.gaierror, "there is no such host"),
)


@dataclass(frozen=True)
class Credentials:
    """What opens the service: a key of its own, a Google identity, both or neither."""

    api_key: str | None = None
    identity_token: str | None = None

    def headers(self) -> dict[str, str]:
        """Return the headers that carry them.

        Source: https://cloud.google.com/run/docs/authenticating/service-to-service: Cloud Run also takes the identity
        from X-Serverless-Authorization, and then leaves Authorization to the service.
        """
        if self.api_key is None:
            return {} if self.identity_token is None else {"Authorization": f"Bearer {self.identity_token}"}
        headers = {"Authorization": f"Bearer {self.api_key}"}
        if self.identity_token is not None:
            headers["X-Serverless-Authorization"] = f"Bearer {self.identity_token}"
        return headers

    def without_key(self) -> "Credentials":
        """Return the identity alone."""
        return replace(self, api_key=None)

    def without_identity(self) -> "Credentials":
        """Return the key alone."""
        return replace(self, identity_token=None)


@dataclass(frozen=True)
class OpenAnswer:
    """An answer whose body is still to come."""

    reply: Reply  # with the whole body if the status is an error's
    began_s: float  # monotonic
    _response: http.client.HTTPResponse

    def lines(self, limit_s: float) -> Iterator[bytes]:
        """Yield the body's lines as they come.

        Raises:
            Unreachable: the connection broke, fell silent, or went on for longer than `limit_s`.
        """
        try:
            while line := self._response.readline():
                yield line
                if time.monotonic() - self.began_s > limit_s:
                    raise Unreachable(self.reply.request, f"the answer did not end within {limit_s:g} s")
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(self.reply.request, _cause(error, limit_s)) from error


class Client:
    """Requests to one service."""

    def __init__(self, url: str, credentials: Credentials, *, request_timeout_s: float) -> None:
        parts = urlsplit(url)
        self.url = url
        self.credentials = credentials
        self.request_timeout_s = request_timeout_s
        self._is_tls = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")  # the OpenAI SDK's base_url is welcome too

    def get(self, path: str, *, credentials: Credentials | None = None, timeout_s: float | None = None) -> Reply:
        """Ask for a document.

        Raises:
            Unreachable: there is no answer.
        """
        with self._exchange("GET", path, None, credentials, timeout_s, is_whole=True) as answer:
            return answer.reply

    def post(self, path: str, document: Mapping[str, Any] | bytes) -> Reply:
        """Send a document, or bytes that are none.

        Raises:
            Unreachable: there is no answer.
        """
        with self._exchange("POST", path, document, None, None, is_whole=True) as answer:
            return answer.reply

    @contextmanager
    def stream(self, path: str, document: Mapping[str, Any]) -> Iterator[OpenAnswer]:
        """Send a document and read the answer as it comes.

        Raises:
            Unreachable: there is no answer.
        """
        with self._exchange("POST", path, document, None, None, is_whole=False) as answer:
            yield answer

    @contextmanager
    def _exchange(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | bytes | None,
        credentials: Credentials | None,
        timeout_s: float | None,
        *,
        is_whole: bool,
    ) -> Iterator[OpenAnswer]:
        limit_s = self.request_timeout_s if timeout_s is None else timeout_s
        credentials = self.credentials if credentials is None else credentials
        headers = {"User-Agent": USER_AGENT, **credentials.headers()}
        body = document if isinstance(document, bytes | None) else json.dumps(document).encode()
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = self._connection(limit_s)
        try:
            try:
                connection.connect()
                began_s = time.monotonic()
                connection.request(method, self._prefix + path, body, headers)
                response = connection.getresponse()
                content = response.read() if is_whole or response.status >= 400 else b""
            except (OSError, http.client.HTTPException) as error:
                is_final = isinstance(error, socket.gaierror | ssl.SSLCertVerificationError)
                raise Unreachable(f"{method} {path}", _cause(error, limit_s), is_final=is_final) from error
            reply = Reply(
                f"{method} {path}",
                response.status,
                {name.lower(): value for name, value in response.getheaders()},
                content,
                time.monotonic() - began_s,
                was_keyed=credentials.api_key is not None,
                was_identified=credentials.identity_token is not None,
            )
            yield OpenAnswer(reply, began_s, response)
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._is_tls:
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)


def json_of(reply: Reply) -> Any:
    """Return the document of an answer.

    Raises:
        CheckFailed: it is none.
    """
    try:
        return json.loads(reply.body)
    except ValueError:
        raise CheckFailed("the answer is not JSON", reply) from None


def _cause(error: Exception, limit_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {limit_s:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    for kind, cause in CAUSES:
        if isinstance(error, kind):
            return cause
    return f"no HTTP answer: {type(error).__name__} {error}".rstrip()
