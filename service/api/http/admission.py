"""Admission: a request takes its place in the queue before its body is read, or is refused at once."""

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.http.call import call_of
from service.api.http.errors import respond
from service.api.http.receive import JSON, METHODS_WITH_BODY, AcceptedBodies, stated_length
from service.api.http.request_queue import RequestQueue
from service.errors import Overloaded


class AdmissionPlaces:
    """ASGI middleware that gives each request with a body a place, and answers those without one with Retry-After.

    A batch's own requests are bounded by the batch. Those that end the work of others take no place, since that work
    holds the places.
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
        if scope["type"] != "http" or scope["method"] not in METHODS_WITH_BODY:
            await self._app(scope, receive, send)
            return
        call, accepted = call_of(scope), self._accepted.of(scope)
        if call.is_background or not accepted.takes_place:
            await self._app(scope, receive, send)
            return
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
