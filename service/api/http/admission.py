"""Admission: a request takes its place in the queue before its body is read, or is refused at once."""

from collections.abc import Mapping
from types import MappingProxyType

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.http.call import call_of
from service.api.http.errors import respond
from service.api.http.receive import METHODS_WITH_BODY
from service.api.http.request_queue import RequestQueue
from service.errors import Overloaded


class Places:
    """ASGI middleware that gives each request with a body a place, and tells those without when to come again.

    A batch's own requests are bounded by the batch.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        queue: RequestQueue,
        max_body_bytes: int,
        uploads: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Wrap an app.

        Args:
            app: the app that answers.
            queue: the queue that admits requests.
            max_body_bytes: the largest body, and the size assumed of one that states no length.
            uploads: the same for paths of forms; 0 for those whose bodies are not held in memory.
        """
        self._app = app
        self._queue = queue
        self._max_body_bytes = max_body_bytes
        self._uploads = uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it with its body unread."""
        if scope["type"] != "http" or scope["method"] not in METHODS_WITH_BODY or call_of(scope).is_background:
            await self._app(scope, receive, send)
            return
        call = call_of(scope)
        try:
            is_json = scope["path"] not in self._uploads
            call.place = place = self._queue.enter(self._body_bytes(scope), call.clocks, call.key, is_json=is_json)
        except Overloaded as error:
            await respond(error, scope, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._queue.leave(place)

    def _body_bytes(self, scope: Scope) -> int:
        """Return how many bytes of memory the body may take; a longer one is refused later, unread."""
        most = self._uploads.get(scope["path"], self._max_body_bytes)
        length = Headers(scope=scope).get("content-length", "")
        return min(int(length), most) if length.isdecimal() and len(length) < 20 else most
