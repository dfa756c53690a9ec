"""Read a request's body, bounded in size and time."""

import asyncio
import codecs
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.http.call import call_of, cancel_on_disconnect, header
from service.api.schema.wire import WireObject, parse
from service.api.work.long_body import LongBodies, LongBody
from service.api.work.long_work import SHORT_BODY_BYTES
from service.errors import (
    BodyTooLarge,
    BodyTooSlow,
    ClientDisconnected,
    RequestError,
    UnsupportedMediaType,
)

METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
MAX_LENGTH_DIGITS = 20
JSON = "application/json"
# What clients send that name no type of their own: curl's form, text, or nothing.
UNSTATED_MEDIA_TYPES = frozenset({"", "application/octet-stream", "application/x-www-form-urlencoded", "text/plain"})


def json_body[T: WireObject](kind: type[T]) -> Callable[[Request], Awaitable[T]]:
    """Return a FastAPI dependency that reads and checks a body of this kind; a long one comes without its bulk."""

    async def read(request: Request) -> T:
        parsed = await read_body(kind, request)
        if parsed.ignored:
            call_of(request.scope).ignored.add(parsed.ignored)
        return parsed

    return read


async def read_body[T: WireObject](kind: type[T], request: Request) -> T:
    """Return the checked body of a request; a long one comes without its bulk.

    Raises:
        ClientDisconnected: the client disconnected first.
        RequestError: as `parse` does.
    """
    try:
        content = await request.body()
    except ClientDisconnect:
        raise ClientDisconnected from None
    # Some editors and languages write a byte order mark, which is no JSON.
    return await parsed_body(request, kind, content.removeprefix(codecs.BOM_UTF8))


async def parsed_body[T: WireObject](request: Request, kind: type[T], content: bytes) -> T:
    """Return the checked object of a body that was read, or made from one; a long one comes without its bulk.

    Raises:
        RequestError: as `parse` does.
        BodyTooLaborious: it takes too much time or memory.
    """
    call, is_long = call_of(request.scope), len(content) > SHORT_BODY_BYTES
    if call.place is not None:
        call.place.is_long = is_long  # a chunked body does not state its length
    if not is_long:
        return parse(kind, content)
    call.long_body = LongBody(kind, content)
    long_bodies: LongBodies = request.app.state.context.long_bodies
    return await cancel_on_disconnect(request.receive, long_bodies.read(call.long_body, call.key))


@dataclass(frozen=True)
class Accepted:
    """The bodies that a request may have."""

    max_bytes: int
    timeout_s: float  # for a whole body to arrive
    media_type: str = JSON
    setting: str | None = None  # what the operator sets the limit by
    is_held: bool = True  # in memory
    takes_place: bool = True  # in the queue; a request that ends the work of others must not wait for it


class AcceptedBodies:
    """What bodies each request may have: by its path, and larger ones if there may be images in them."""

    def __init__(
        self,
        usual: Accepted,
        *,
        uploads: Mapping[str, Accepted],
        with_images: Accepted,
        image_paths: Collection[str],
        may_see: Callable[[], bool],
        cancels: re.Pattern[str],
    ) -> None:
        """Keep the bounds.

        Args:
            usual: the bodies of paths that are not named.
            uploads: those of paths that take forms.
            with_images: those of chats with images; one that states its length counts for no more than it is.
            image_paths: where chats are.
            may_see: returns whether a model takes images.
            cancels: the paths that end the work of others, and whose bodies are not read.
        """
        self._usual, self._uploads, self._with_images = usual, uploads, with_images
        self._image_paths, self._may_see = image_paths, may_see
        self._cancels, self._cancel = cancels, replace(usual, takes_place=False)

    def of(self, scope: Scope) -> Accepted:
        """Return what a request may have."""
        path = scope["path"]
        if path in self._image_paths and (stated_length(scope) or 0) > self._usual.max_bytes and self._may_see():
            return self._with_images
        if self._cancels.fullmatch(path):
            return self._cancel
        return self._uploads.get(path, self._usual)


def stated_length(scope: Scope) -> int | None:
    """Return the length of a body that its header states, in bytes; None for none, or one that is no length."""
    length = header(scope, b"content-length")
    return int(length) if length.isdecimal() and len(length) <= MAX_LENGTH_DIGITS else None


class BodyLimit:
    """ASGI middleware that refuses large, slow and non-JSON bodies.

    It counts bytes as they arrive, since a chunked body does not state its length.
    """

    def __init__(self, app: ASGIApp, *, accepted: AcceptedBodies) -> None:
        """Wrap an app.

        Args:
            app: the app that reads the bodies.
            accepted: the bodies that it may read.
        """
        self._app = app
        self._accepted = accepted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; reading a refused body raises the reason, so a wrong path or method comes first."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        accepted = self._accepted.of(scope)
        refusal = _refusal(scope, accepted)
        await self._app(scope, _bounded(receive, accepted) if refusal is None else _refusing(refusal), send)


def _refusal(scope: Scope, accepted: Accepted) -> RequestError | None:
    headers, length = dict(reversed(scope["headers"])), stated_length(scope)  # the first of each name counts
    if (b"content-length" in headers and length is None) or (length or 0) > accepted.max_bytes:
        return BodyTooLarge(accepted.max_bytes, accepted.setting)
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        return UnsupportedMediaType("Content-Encoding is not supported: send the body uncompressed.")
    media_type = header(scope, b"content-type").partition(";")[0].strip().lower()
    # A page of another origin may send these without asking first, so a browser must name JSON.
    is_json = media_type == JSON or (b"origin" not in headers and media_type in UNSTATED_MEDIA_TYPES)
    is_accepted = is_json if accepted.media_type == JSON else media_type == accepted.media_type
    # Defends against T26.
    if scope["method"] in METHODS_WITH_BODY and not is_accepted:
        return UnsupportedMediaType(f"Content-Type must be {accepted.media_type}.")
    return None


def _bounded(receive: Receive, accepted: Accepted) -> Receive:
    end_s = asyncio.get_running_loop().time() + accepted.timeout_s
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
            raise BodyTooSlow(accepted.timeout_s) from None
        num_bytes += len(message.get("body", b""))
        is_complete = not message.get("more_body", False)
        # Defends against T2.
        if num_bytes > accepted.max_bytes:
            raise BodyTooLarge(accepted.max_bytes, accepted.setting)
        return message

    return bounded


def _refusing(refusal: RequestError) -> Receive:
    async def refuse() -> Message:
        raise refusal

    return refuse
