"""A request's body: bounded in size and time as it arrives, then parsed."""

import asyncio
from collections.abc import Awaitable, Callable

from fastapi import Request
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.http.errors import respond
from service.api.schema.wire import WireObject, parse
from service.errors import BodyTooLarge, BodyTooSlow, ClientDisconnected, RequestError, UnsupportedMediaType

METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
MAX_LENGTH_DIGITS = 20


def json_body[T: WireObject](kind: type[T]) -> Callable[[Request], Awaitable[T]]:
    """Return a FastAPI dependency that reads and checks a body of this kind."""

    async def read_body(request: Request) -> T:
        try:
            content = await request.body()
        except ClientDisconnect:
            raise ClientDisconnected from None
        return parse(kind, content)

    return read_body


class BodyLimit:
    """ASGI middleware that refuses large, slow and non-JSON bodies.

    It counts bytes as they arrive, since a chunked body does not state its length.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, timeout_s: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it by its headers; reading the body raises BodyTooLarge or BodyTooSlow."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope["method"], Headers(scope=scope))
        if refusal is not None:
            await respond(refusal, scope, send)
            return
        await self._app(scope, self._bounded(receive), send)

    def _refusal(self, method: str, headers: Headers) -> RequestError | None:
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > MAX_LENGTH_DIGITS or int(length) > self._max_bytes:
            return BodyTooLarge(self._max_bytes)
        if headers.get("content-encoding", "identity").lower() != "identity":
            return UnsupportedMediaType("Content-Encoding is not supported: send the body uncompressed.")
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method in METHODS_WITH_BODY and media_type != "application/json":
            return UnsupportedMediaType("Content-Type must be application/json.")
        return None

    def _bounded(self, receive: Receive) -> Receive:
        end_s = asyncio.get_running_loop().time() + self._timeout_s
        num_bytes = 0
        is_complete = False

        async def bounded() -> Message:
            nonlocal num_bytes, is_complete
            if is_complete:
                return await receive()
            try:
                async with asyncio.timeout_at(end_s):
                    message = await receive()
            except TimeoutError:
                raise BodyTooSlow(self._timeout_s) from None
            num_bytes += len(message.get("body", b""))
            is_complete = not message.get("more_body", False)
            if num_bytes > self._max_bytes:
                raise BodyTooLarge(self._max_bytes)
            return message

        return bounded
