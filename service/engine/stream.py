"""The way back: what the device thread says to one client, read as an async iterator."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from service.engine.request import TokenEvent
from service.errors import EngineError


class TokenStream:
    """The events of one request, in order; ends after the one with a finish reason.

    Delivery never blocks the device thread: what a slow reader leaves lies here, bounded by the request's max_tokens.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, abort: Callable[[], None], on_over: Callable[[], object]
    ) -> None:
        """Make the reading end.

        Args:
            loop: the event loop of the reader.
            abort: tells the engine that nobody reads any more.
            on_over: told once, on the event loop, when the last event has arrived or the reader has gone.
        """
        self.loop = loop
        self._abort = abort
        self._on_over = on_over
        self._events: deque[TokenEvent | EngineError] = deque()
        self._arrived = asyncio.Event()
        self._is_over = False

    def put(self, event: TokenEvent | EngineError) -> None:
        """Add an event; called on the event loop."""
        if isinstance(event, EngineError) or event.finish_reason is not None:
            self._on_over()
        self._events.append(event)
        self._arrived.set()

    def abort(self) -> None:
        """Stop the request; calling it again, or after the end, does nothing."""
        if not self._is_over:
            self._is_over = True
            self._abort()
            self._on_over()
            self._arrived.set()

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        return self

    async def __anext__(self) -> TokenEvent:
        """Return the next event.

        Raises:
            EngineError: the engine failed.
        """
        while not self._events and not self._is_over:
            self._arrived.clear()
            await self._arrived.wait()
        if self._is_over:
            raise StopAsyncIteration
        event = self._events.popleft()
        if isinstance(event, EngineError):
            self._is_over = True
            raise event
        self._is_over = event.finish_reason is not None
        return event
