"""Server-sent events: one JSON object each, then `[DONE]`; an error is the last event, without `[DONE]` after it.

The response starts with the first event, so an earlier failure still has its own status. Clients and proxies give up a
response that does not start, so it starts without an event if none comes for some seconds.
Source: https://platform.openai.com/docs/api-reference/chat-streaming, https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, override

from pydantic_core import to_json
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from service.api.http.call import Deadline, cancel_on_disconnect
from service.api.http.errors import logged_error_answer
from service.api.http.lines import single_line
from service.errors import ClientDisconnected, DeadlineExceeded

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"  # which readers of events skip
HEAD_AFTER_S = 5.0  # a response starts by then, with or without an event
KEEP_ALIVE_S = 15.0  # between two looks for a stream that sends nothing
# Proxies must neither cache nor buffer the answer.
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


def frame(document: Mapping[str, Any]) -> bytes:
    """Return one event, a single line."""
    return b"data: " + single_line(to_json(document)) + b"\n\n"


class EventStream(StreamingResponse):
    """A response that sends events as they arrive, and aborts the sequences when the client disconnects."""

    media_type = "text/event-stream"
    end = DONE
    keep_alive = COMMENT  # sent while no event comes

    def __init__(
        self,
        documents: AsyncIterator[Sequence[Mapping[str, Any]]],
        *,
        sequences: AbstractContextManager[object],
        deadline: Deadline,
    ) -> None:
        """Create the response.

        Args:
            documents: the events; those of one item are sent in one write.
            sequences: the running sequences; leaving the context aborts them.
            deadline: the end of the request's time.
        """
        super().__init__((), headers=HEADERS)
        self._documents = documents
        self._sequences = sequences
        self._deadline = deadline
        self._has_begun = False
        self._is_sending = False
        self._num_sent = 0
        self._keeping_alive = asyncio.Lock()  # held while something is sent that is no event

    def frame(self, document: Mapping[str, Any]) -> bytes:
        """Return one event."""
        return frame(document)

    def failure(self, body: Mapping[str, Any]) -> bytes:
        """Return the last event of a stream that fails, from the body that an earlier failure would have had."""
        return self.frame(body)

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._sequences:
                await cancel_on_disconnect(receive, self._send_all(scope, send))
        except ClientDisconnected:
            if not self._has_begun:
                raise
            # The body stays incomplete, so the server closes the connection.

    async def _send_all(self, scope: Scope, send: Send) -> None:
        """Send the events and the end; a client that has stopped reading counts as gone at the deadline."""
        try:
            await self._deadline.within(self._send_documents(send))
            end = self.end
        except Exception as error:
            if not self._has_begun:
                raise
            if self._is_sending and isinstance(error, DeadlineExceeded):
                raise ClientDisconnected from None
            end = self.failure(logged_error_answer(error, scope).body)  # too late for a status
        try:
            await self._deadline.within(self._send(send, end, is_last=True))
        except DeadlineExceeded:
            raise ClientDisconnected from None

    async def _send_documents(self, send: Send) -> None:
        keeping_alive = asyncio.create_task(self._keep_alive(send))
        try:
            async for documents in self._documents:
                if self._keeping_alive.locked():
                    async with self._keeping_alive:
                        pass  # what is no event has been sent whole
                await self._send(send, b"".join(map(self.frame, documents)))
        finally:
            keeping_alive.cancel()
            await asyncio.gather(keeping_alive, return_exceptions=True)

    async def _keep_alive(self, send: Send) -> None:
        """Send something whenever nothing else was sent for a while."""
        quiet_s = HEAD_AFTER_S
        while True:
            num_sent = self._num_sent
            await asyncio.sleep(quiet_s)
            if self._num_sent == num_sent and not self._is_sending:
                async with self._keeping_alive:
                    await self._send(send, self.keep_alive)
            quiet_s = KEEP_ALIVE_S

    async def _send(self, send: Send, content: bytes, *, is_last: bool = False) -> None:
        self._is_sending = True
        if not self._has_begun:
            self._has_begun = True
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": content, "more_body": not is_last})
        self._is_sending = False
        self._num_sent += 1


class MessageStream(EventStream):
    """A response whose events have names; it ends without `[DONE]`, and a failure is an event like the others.

    Source: https://docs.anthropic.com/en/docs/build-with-claude/streaming
    """

    end = b""
    keep_alive = b'event: ping\ndata: {"type":"ping"}\n\n'

    @override
    def frame(self, document: Mapping[str, Any]) -> bytes:
        return f"event: {document['type']}\n".encode() + super().frame(document)


class NamedEventStream(EventStream):
    """A response whose events have names and numbers; it ends without `[DONE]`, and a failure is an `error` event.

    Source: https://platform.openai.com/docs/api-reference/responses-streaming
    """

    end = b""
    _next_number = 0

    @override
    def frame(self, document: Mapping[str, Any]) -> bytes:
        self._next_number = document["sequence_number"] + 1
        return f"event: {document['type']}\n".encode() + super().frame(document)

    @override
    def failure(self, body: Mapping[str, Any]) -> bytes:
        error = body["error"]
        fields = {name: error[name] for name in ("code", "message", "param")}
        return self.frame({"type": "error", **fields, "sequence_number": self._next_number})
