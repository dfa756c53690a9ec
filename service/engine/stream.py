"""The events of one request, sent by the device thread and read as an async iterator."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from service.engine.request import TokenEvent
from service.errors import EngineError


class TokenStream:
    """The events of one request, in order; ends after the one with a finish reason.

    Delivery never blocks the device thread: unread events wait here, bounded by the request's max_tokens. A slow reader
    gets all events that have arrived as one, so falling behind makes its work less.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, abort: Callable[[], None], on_over: Callable[[], object]
    ) -> None:
        """Connect the stream with its reader.

        Args:
            loop: the event loop of the reader.
            abort: called when the reader stops reading; the engine then stops the request.
            on_over: called once, on the event loop, after the last event or after `abort`.
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
        """Return the next event: all that have arrived since the last one, joined.

        Raises:
            EngineError: the engine failed.
        """
        while not self._events and not self._is_over:
            self._arrived.clear()
            await self._arrived.wait()
        if self._is_over:
            raise StopAsyncIteration
        if isinstance(error := self._events[0], EngineError):
            self._is_over = True
            raise error
        event = _joined(self._take())
        self._is_over = event.finish_reason is not None
        return event

    def _take(self) -> list[TokenEvent]:
        """Remove and return the events that have arrived, up to an error."""
        taken: list[TokenEvent] = []
        while self._events and isinstance(event := self._events[0], TokenEvent):
            taken.append(event)
            self._events.popleft()
        return taken


def _joined(events: list[TokenEvent]) -> TokenEvent:
    """Return one event with the contents of several."""
    if len(events) == 1:
        return events[0]
    return TokenEvent(
        token_ids=tuple(token_id for event in events for token_id in event.token_ids),
        finish_reason=events[-1].finish_reason,
        num_cached_tokens=events[0].num_cached_tokens,
        logprobs=tuple(entry for event in events for entry in event.logprobs),
        prompt_logprobs=events[0].prompt_logprobs,
    )
