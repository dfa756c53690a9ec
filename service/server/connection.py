"""A client connection with limits on time and number that uvicorn lacks.

Uvicorn only limits the time between two requests. Clients that send nothing or do not read their response could keep
any number of connections open indefinitely.
"""

import asyncio
import logging
import resource
from dataclasses import dataclass
from typing import Any, ClassVar, override

import h11
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.api.http.call import CALL, Call
from service.api.http.errors import encoded, error_answer
from service.errors import MalformedRequest, TooManyConnections
from service.server.request_reader import MAX_HEAD_BYTES, RequestReader

logger = logging.getLogger(__name__)

# File descriptors for everything else: libraries, checkpoints, downloads.
RESERVED_HANDLES = 256
MAX_CONNECTIONS = 4096


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits on connections."""

    head_s: float = 30.0  # until the head of a request is complete
    write_s: float = 30.0  # until the client has read MIN_WRITTEN_BYTES of buffered output
    num_connections: int = MAX_CONNECTIONS


# Slower than this means a < 4 kbit/s link or a client holding the connection open on purpose.
MIN_WRITTEN_BYTES = 16 * 1024


def _allow_connections() -> int:
    """Raise this process's limit on file descriptors as far as needed and allowed; return the number of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = MAX_CONNECTIONS + RESERVED_HANDLES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, max(soft - RESERVED_HANDLES, soft // 2))


class Connection(H11Protocol):
    """An HTTP/1.1 connection."""

    limits: ClassVar[ConnectionLimits] = ConnectionLimits()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn: RequestReader = RequestReader()
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Call `pause_writing` as soon as anything is buffered, instead of at 64 KiB.
        transport.set_write_buffer_limits(0)
        # Defends against T3.
        self._head_timer = self.loop.call_later(self.limits.head_s, self._give_up_head)
        if len(self.connections) > self.limits.num_connections:
            self._make_room()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._head_timer = _cancelled(self._head_timer)
        self._write_timer = _cancelled(self._write_timer)
        super().connection_lost(exc)
        call: Call | None = None if self.is_idle else self.cycle.scope.get(CALL)
        if call is not None and call.task is not None:
            call.has_left = True
            call.task.cancel()

    @override
    def data_received(self, data: bytes) -> None:
        # h11 does not limit the size of a head that arrives complete.
        for begin in range(0, len(data), MAX_HEAD_BYTES):
            if not self.transport.is_closing():
                super().data_received(data[begin : begin + MAX_HEAD_BYTES])
        if self.conn.has_request:
            self._head_timer = _cancelled(self._head_timer)
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.head_s, self._give_up_head)

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    @override
    def resume_writing(self) -> None:
        self._write_timer = _cancelled(self._write_timer)
        super().resume_writing()

    @override
    def send_400_response(self, msg: str) -> None:
        """Answer a request that violates the protocol, and close the connection."""
        if self.conn.may_answer:
            self._refuse(self.conn.error or MalformedRequest(msg))
        else:
            self.transport.abort()

    @override
    def _should_upgrade(self) -> bool:
        return False  # clients that offer h2c continue with HTTP/1.1

    def _make_room(self) -> None:
        """Close an idle connection, preferably one without any request; if there is none, refuse this one."""
        others = (other for other in self.connections if isinstance(other, Connection) and other is not self)
        idle = [connection for connection in others if connection.is_idle]
        unused = (connection for connection in idle if connection.cycle is None)
        victim = next(unused, idle[0] if idle else None)
        if victim is None:
            self._refuse(TooManyConnections(self.limits.num_connections))
        else:
            victim.transport.abort()

    def _refuse(self, error: MalformedRequest | TooManyConnections) -> None:
        headers, body = encoded(error_answer(error, ""))
        head = h11.Response(status_code=error.status, headers=[*headers, CLOSE_HEADER])
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _give_up_head(self) -> None:
        self._head_timer = None
        self.transport.close()

    def _watch_writing(self) -> None:
        size = self.transport.get_write_buffer_size()
        # Defends against T27.
        self._write_timer = self.loop.call_later(self.limits.write_s, self._check_writing, size)

    def _check_writing(self, earlier_size: int) -> None:
        """Abort a connection whose client has not read; closing it would wait for the client."""
        if earlier_size - self.transport.get_write_buffer_size() < MIN_WRITTEN_BYTES:
            self.transport.abort()
        else:
            self._watch_writing()


def connection_class() -> type[Connection]:
    """Return the connection class of this process, limited by its file descriptors."""

    class Limited(Connection):
        limits = ConnectionLimits(num_connections=_allow_connections())

    return Limited


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
