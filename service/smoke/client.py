"""The HTTP client of the checks: httpx without proxies, redirects or retries, and a new connection for each request.

Timing starts once the connection is established, so that latencies exclude the TLS handshake.
"""

import json
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx

from service.smoke.failures import CheckFailed, Reply, Unreachable

HEADERS = {"User-Agent": "levserve-smoke", "Accept-Encoding": "identity"}
SENDING_EVENT = "http11.send_request_headers.started"
CAUSES = (
    (ConnectionRefusedError, "connection refused"),
    (ConnectionError, "the connection broke"),
    (socket.gaierror, "there is no such host"),
)
FINAL_CAUSES = (socket.gaierror, ssl.SSLCertVerificationError)


@dataclass(frozen=True)
class Credentials:
    """An API key, a Google identity token, both or neither."""

    api_key: str | None = None
    identity_token: str | None = None

    def headers(self) -> dict[str, str]:
        """Return the request headers.

        Source: https://cloud.google.com/run/docs/authenticating/service-to-service: Cloud Run also accepts the identity
        in X-Serverless-Authorization, and then leaves Authorization to the service.
        """
        if self.api_key is None:
            return {} if self.identity_token is None else {"Authorization": f"Bearer {self.identity_token}"}
        headers = {"Authorization": f"Bearer {self.api_key}"}
        if self.identity_token is not None:
            headers["X-Serverless-Authorization"] = f"Bearer {self.identity_token}"
        return headers

    def without_key(self) -> "Credentials":
        return replace(self, api_key=None)

    def without_identity(self) -> "Credentials":
        return replace(self, identity_token=None)


@dataclass(frozen=True)
class MultipartForm:
    """The fields of a form, and its file."""

    fields: Mapping[str, str]
    file: bytes


@dataclass(frozen=True)
class OpenAnswer:
    """An answer whose body may not have arrived yet."""

    reply: Reply  # with the complete body if the status is an error
    began_s: float  # monotonic
    _response: httpx.Response

    def lines(self, limit_s: float) -> Iterator[bytes]:
        """Yield the body's lines as they arrive, without line breaks.

        Raises:
            Unreachable: the connection broke or timed out, or the answer took longer than `limit_s`.
        """
        rest = b""
        try:
            for content in self._response.iter_bytes():
                *lines, rest = (rest + content).split(b"\n")
                yield from lines
                if time.monotonic() - self.began_s > limit_s:
                    raise Unreachable(self.reply.request, f"the answer did not end within {limit_s:g} s")
        except httpx.HTTPError as error:
            raise Unreachable(self.reply.request, _cause(error, limit_s, has_begun=True)) from error
        if rest:
            yield rest


class Client:
    """A client for one service, to be used as a context manager."""

    def __init__(self, url: str, credentials: Credentials, *, request_timeout_s: float) -> None:
        self.url = url
        self.credentials = credentials
        self.request_timeout_s = request_timeout_s
        self._base_url = url.rstrip("/").removesuffix("/v1")  # also accept the OpenAI SDK's base_url
        self._http = httpx.Client(
            headers=HEADERS,
            limits=httpx.Limits(max_keepalive_connections=0),
            trust_env=False,
            verify=ssl.create_default_context(),  # the system's certificates
        )

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, *, credentials: Credentials | None = None, timeout_s: float | None = None) -> Reply:
        """Send a GET.

        Raises:
            Unreachable: there is no answer.
        """
        with self._send("GET", path, None, credentials, timeout_s, is_whole=True) as answer:
            return answer.reply

    def post(self, path: str, document: Mapping[str, Any] | bytes) -> Reply:
        """Send a POST with a JSON document, or with bytes that are not JSON.

        Raises:
            Unreachable: there is no answer.
        """
        with self._send("POST", path, document, None, None, is_whole=True) as answer:
            return answer.reply

    def post_form(self, path: str, fields: Mapping[str, str], file: bytes) -> Reply:
        """Send a POST with a form of fields and a file.

        Raises:
            Unreachable: there is no answer.
        """
        with self._send("POST", path, MultipartForm(fields, file), None, None, is_whole=True) as answer:
            return answer.reply

    @contextmanager
    def stream(self, path: str, document: Mapping[str, Any]) -> Iterator[OpenAnswer]:
        """Send a POST, and yield the answer while its body arrives.

        Raises:
            Unreachable: there is no answer.
        """
        with self._send("POST", path, document, None, None, is_whole=False) as answer:
            yield answer

    @contextmanager
    def _send(
        self,
        method: str,
        path: str,
        document: "Mapping[str, Any] | bytes | MultipartForm | None",
        credentials: Credentials | None,
        timeout_s: float | None,
        *,
        is_whole: bool,
    ) -> Iterator[OpenAnswer]:
        limit_s = self.request_timeout_s if timeout_s is None else timeout_s
        credentials = self.credentials if credentials is None else credentials
        headers, content = credentials.headers(), _content(document)
        if "content" in content:
            headers["Content-Type"] = "application/json"
        began_s = time.monotonic()

        def trace(event: str, _: Mapping[str, Any]) -> None:
            nonlocal began_s
            if event == SENDING_EVENT:
                began_s = time.monotonic()

        has_begun = False
        try:
            request = self._http.build_request(
                method,
                self._base_url + path,
                headers=headers,
                timeout=limit_s,
                extensions={"trace": trace},
                **content,
            )
            response = self._http.send(request, stream=True)
            has_begun = True
            content = response.read() if is_whole or response.status_code >= 400 else b""
        except httpx.HTTPError as error:
            cause = _cause(error, limit_s, has_begun=has_begun)
            root = _root(error)
            raise Unreachable(
                f"{method} {path}",
                cause,
                is_refused=isinstance(root, ConnectionRefusedError),
                is_final=isinstance(root, FINAL_CAUSES),
            ) from error
        reply = Reply(
            f"{method} {path}",
            response.status_code,
            response.headers,
            content,
            time.monotonic() - began_s,
            was_keyed=credentials.api_key is not None,
            was_identified=credentials.identity_token is not None,
        )
        try:
            yield OpenAnswer(reply, began_s, response)
        finally:
            response.close()


def _content(document: Mapping[str, Any] | bytes | MultipartForm | None) -> dict[str, Any]:
    """Return the body of a request as httpx takes it."""
    match document:
        case None:
            return {}
        case MultipartForm(fields, file):
            return {"data": dict(fields), "files": {"file": ("recording.wav", file)}}
        case bytes():
            return {"content": document}
        case _:
            return {"content": json.dumps(document).encode()}


def json_of(reply: Reply) -> Any:
    """Parse the body of an answer.

    Raises:
        CheckFailed: the answer is not JSON.
    """
    try:
        return json.loads(reply.body)
    except ValueError:
        raise CheckFailed("the answer is not JSON", reply) from None


def _cause(error: httpx.HTTPError, limit_s: float, *, has_begun: bool) -> str:
    """Describe why a request failed; `has_begun` is whether a status had arrived."""
    root = _root(error)
    if isinstance(error, httpx.TimeoutException):
        return f"no answer within {limit_s:g} s"
    if isinstance(root, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {root.verify_message}"
    for kind, cause in CAUSES:
        if isinstance(root, kind):
            return cause
    if isinstance(error, httpx.RemoteProtocolError) and has_begun:
        return "the connection broke off in the middle of the answer"
    if isinstance(error, httpx.RemoteProtocolError) and "disconnected" in str(error):
        return "the connection was closed before an answer"
    return f"no HTTP answer: {type(root).__name__} {root}".rstrip()


def _root(error: BaseException) -> BaseException:
    """Return the first error of a chain; httpcore hides causes but preserves them as contexts."""
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    return error
