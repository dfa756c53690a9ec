"""Places for requests: one is taken before a body is read, and what finds none is refused at once."""

import math
import time
from collections import deque

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.http.background import background_of
from service.api.http.errors import respond
from service.api.http.receive import METHODS_WITH_BODY
from service.errors import Overloaded

NUM_MEASURED = 32  # the latest requests that have ended, from which the speed follows
MIN_RETRY_S, MAX_RETRY_S = 1, 60


class Places:
    """ASGI middleware that holds at most so many requests with a body, and tells the others when to come again.

    A batch's own requests are bounded by the batch.
    """

    def __init__(self, app: ASGIApp, *, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._num_open = 0
        # Each refused request is expected again, and each that ends makes room for one of them.
        self._num_expected = 0
        self._ends_s: deque[float] = deque(maxlen=NUM_MEASURED)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it with its body unread."""
        if scope["type"] != "http" or scope["method"] not in METHODS_WITH_BODY or background_of(scope) is not None:
            await self._app(scope, receive, send)
            return
        if self._num_open >= self._limit:
            self._num_expected += 1
            retry_after_s = self._retry_after_s()
            error = Overloaded(running=self._num_open, limit=self._limit, retry_after_s=retry_after_s)
            await respond(error, scope, send)
            return
        self._num_open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._num_open -= 1
            self._num_expected = max(0, self._num_expected - 1)
            self._ends_s.append(time.monotonic())

    def _retry_after_s(self) -> int:
        """Return when the last of the expected requests finds a place, at the speed of the latest ends; in seconds."""
        if not self._ends_s:
            return MIN_RETRY_S
        span_s = time.monotonic() - self._ends_s[0]
        return min(MAX_RETRY_S, max(MIN_RETRY_S, math.ceil(self._num_expected * span_s / len(self._ends_s))))
