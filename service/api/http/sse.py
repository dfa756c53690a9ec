"""Server-sent events: one JSON object each, then `[DONE]`; an error is the last event and has no `[DONE]` after it.

The response begins with the first event, so what fails before it still has a status of its own.
Source: https://platform.openai.com/docs/api-reference/chat-streaming, https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, override

from pydantic_core import to_json
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from service.api.generation.choices import Choices
from service.api.http.cancellation import unless_disconnected
from service.api.http.errors import failure_of
from service.errors import ClientGone, DeadlineExceeded

DONE = b"data: [DONE]\n\n"
# Proxies may neither keep the answer nor hold it back to compress it.
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


def frame(document: dict[str, Any]) -> bytes:
    """Return one event; JSON escapes line ends, so the event is one line."""
    return b"data: " + to_json(document) + b"\n\n"


class EventStream(StreamingResponse):
    """Sends choices as they come, and stops them when the client goes away."""

    def __init__(self, choices: Choices, documents: AsyncIterator[Sequence[dict[str, Any]]]) -> None:
        """Make the answer.

        Args:
            choices: what runs.
            documents: the events; those that come together leave together.
        """
        super().__init__((), headers=HEADERS, media_type="text/event-stream")
        self._choices = choices
        self._documents = documents
        self._has_begun = False
        self._is_sending = False

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._choices:
                await unless_disconnected(receive, self._send_all(scope, send))
        except ClientGone:
            if not self._has_begun:
                raise
            # The stream stays without its end, so the server closes the connection.

    async def _send_all(self, scope: Scope, send: Send) -> None:
        """Send the events and the end; a client that does not read before the request's time is over counts as gone."""
        deadline = self._choices.deadline
        try:
            await deadline.within(self._send_documents(send))
            end = DONE
        except Exception as error:
            if not self._has_begun:
                raise
            if self._is_sending and isinstance(error, DeadlineExceeded):
                raise ClientGone from None
            end = frame(failure_of(error, scope).body)  # the status is sent, so the error goes where the text went
        try:
            await deadline.within(self._send(send, end, is_last=True))
        except DeadlineExceeded:
            raise ClientGone from None

    async def _send_documents(self, send: Send) -> None:
        async for documents in self._documents:
            if not self._has_begun:
                self._has_begun = True
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._send(send, b"".join([frame(document) for document in documents]))

    async def _send(self, send: Send, content: bytes, *, is_last: bool = False) -> None:
        self._is_sending = True
        await send({"type": "http.response.body", "body": content, "more_body": not is_last})
        self._is_sending = False
