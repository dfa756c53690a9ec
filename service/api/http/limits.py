"""Bounds what a request's body may be, before anything reads it: size, kind, and the time that it takes to come."""

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.http.errors import respond
from service.errors import BodyTooLarge, BodyTooSlow, RequestError, UnsupportedMediaType

METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class BodyLimit:
    """ASGI middleware; counts bytes as they come, since a chunked body does not say its length."""

    def __init__(self, app: ASGIApp, *, max_bytes: int, timeout_s: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope["method"], Headers(scope=scope))
        if refusal is not None:
            await respond(refusal, scope, receive, send)
            return
        await self._app(scope, self._bounded(receive), send)

    def _refusal(self, method: str, headers: Headers) -> RequestError | None:
        stated = headers.get("content-length", "0")
        if not stated.isdecimal() or len(stated) > 20 or int(stated) > self._max_bytes:
            return BodyTooLarge(self._max_bytes)
        if headers.get("content-encoding", "identity").lower() != "identity":
            return UnsupportedMediaType("Content-Encoding is not supported: send the body uncompressed.")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method in METHODS_WITH_BODY and kind != "application/json":
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
