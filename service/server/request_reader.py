"""Parsing of HTTP/1.1 requests with limits that h11 lacks.

Source: https://www.rfc-editor.org/rfc/rfc9112#section-6.1 (a request with Content-Length and Transfer-Encoding)
"""

from typing import Any, override

import h11

from service.errors import MalformedRequest

# The largest request head, similar to proxies' limits. h11 compares it with the bytes of an incomplete head, so a head
# that arrives complete may be twice as long.
MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100
# Parsing a chunk costs as much as thousands of bytes, so the chunks of a long body must have a reasonable size.
FREE_CHUNKS = 1000
MIN_MEAN_CHUNK_BYTES = 64


class RequestReader(h11.Connection):
    """The parser of one connection; `error` is the reason for a refusal."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEAD_BYTES)
        self.error: MalformedRequest | None = None
        self._num_chunks = self._num_bytes = 0

    @property
    def has_request(self) -> bool:
        """Whether a request is being answered: its head is complete, but its response is not."""
        return self.their_state is not h11.IDLE and self.our_state is not h11.DONE

    @property
    def may_answer(self) -> bool:
        """Whether no response has been started for this request."""
        return self.our_state in (h11.IDLE, h11.SEND_RESPONSE)

    @override
    def next_event(self) -> Any:
        """Return the next event.

        Raises:
            RemoteProtocolError: the client violates the protocol or a limit.
        """
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._check_head(event)
            elif isinstance(event, h11.Data):
                self._check_chunk(event)
        except h11.RemoteProtocolError as error:
            reason = str(error).partition(": bytearray")[0]  # drop h11's quotation of the input
            self.error = MalformedRequest(f"The request is malformed: {reason}.", status=error.error_status_hint)
            raise
        return event

    def _check_head(self, request: h11.Request) -> None:
        self._num_chunks = self._num_bytes = 0
        # Defends against T1.
        if len(request.headers) > MAX_HEADERS:
            raise h11.RemoteProtocolError(f"more than {MAX_HEADERS} headers", error_status_hint=431)
        if sum(len(name) + len(value) for name, value in request.headers) > MAX_HEAD_BYTES:
            raise h11.RemoteProtocolError(f"headers of more than {MAX_HEAD_BYTES} bytes", error_status_hint=431)
        # Request smuggling: servers disagree about which of the two takes precedence.
        # Defends against T28.
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in request.headers}:
            raise h11.RemoteProtocolError("both Content-Length and Transfer-Encoding")

    def _check_chunk(self, data: h11.Data) -> None:
        self._num_chunks += data.chunk_start
        self._num_bytes += len(data.data)
        if self._num_chunks > FREE_CHUNKS and self._num_bytes < self._num_chunks * MIN_MEAN_CHUNK_BYTES:
            raise h11.RemoteProtocolError(f"chunks of less than {MIN_MEAN_CHUNK_BYTES} bytes on average")
