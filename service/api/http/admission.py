"""Admission: a request takes its place in the queue before its body is read, or is refused at once."""

import re

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.http.call import call_of
from service.api.http.errors import respond
from service.api.http.receive import JSON, METHODS_WITH_BODY, AcceptedBodies, stated_length
from service.api.http.request_queue import RequestQueue
from service.errors import Overloaded

# Requests that end what others do; their bodies are not read.
ENDING = re.compile(r"/v1/(?:batches|responses)/[^/]+/cancel")


class Places:
    """ASGI middleware that gives each request with a body a place, and tells those without when to come again.

    A batch's own requests are bounded by the batch.
    """

    def __init__(self, app: ASGIApp, *, queue: RequestQueue, accepted: AcceptedBodies) -> None:
        """Wrap an app.

        Args:
            app: the app that answers.
            queue: the queue that admits requests.
            accepted: the bodies that it may have; of one that states no length, the largest is assumed.
        """
        self._app = app
        self._queue = queue
        self._accepted = accepted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it with its body unread."""
        # What ends other requests must not wait for them.
        ends = scope["type"] == "http" and ENDING.fullmatch(scope["path"]) is not None
        is_asked = scope["type"] == "http" and scope["method"] in METHODS_WITH_BODY and not ends
        if not is_asked or call_of(scope).is_background:
            await self._app(scope, receive, send)
            return
        call = call_of(scope)
        accepted = self._accepted.of(scope)
        most, length = accepted.max_bytes if accepted.is_held else 0, stated_length(scope)
        num_bytes = most if length is None else min(length, most)  # a longer one is refused later, unread
        is_json = accepted.media_type == JSON
        try:
            call.place = place = self._queue.enter(num_bytes, call.clocks, call.key, is_json=is_json)
        except Overloaded as error:
            await respond(error, scope, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._queue.leave(place)
