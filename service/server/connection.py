"""One connection of a client, with limits on what it may hold and for how long.

Uvicorn limits the time between two requests alone. A silent client, a client that does not read its answer, and any
number of either would keep their connections for as long as they like.
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
from service.errors import ClientDisconnected, MalformedRequest, TooManyConnections
from service.server.request_reader import MAX_HEAD_BYTES, RequestReader

logger = logging.getLogger(__name__)

# File handles for everything else: libraries, checkpoints, downloads.
RESERVED_HANDLES = 256
MAX_CONNECTIONS = 4096


@dataclass(frozen=True)
class ConnectionLimits:
    """What a connection may hold, and for how long; times in seconds."""

    head_s: float = 30.0  # for the head of a request, and from the connection to the first
    write_s: float = 30.0  # for the client to read MIN_WRITTEN_BYTES of what waits to be written
    num_connections: int = MAX_CONNECTIONS


# A client that reads more slowly has a link of less than 4 kbit/s, or wants to hold the connection.
MIN_WRITTEN_BYTES = 16 * 1024


def _allow_connections() -> int:
    """Raise this process's limit of file handles as far as needed and allowed; return how many connections fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + RESERVED_HANDLES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, max(soft - RESERVED_HANDLES, soft // 2))


class Connection(H11Protocol):
    """A connection over HTTP/1.1."""

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
        # `pause_writing` then says that some byte waits, rather than 64 KiB of them.
        transport.set_write_buffer_limits(0)
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
            call.task.cancel(ClientDisconnected.code)

    @override
    def data_received(self, data: bytes) -> None:
        # h11 parses a head that is complete, whatever its size.
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
        """Answer a request that breaks the protocol, and close the connection."""
        if self.conn.may_answer:
            self._refuse(self.conn.error or MalformedRequest(msg))
        else:
            self.transport.abort()

    @override
    def _should_upgrade(self) -> bool:
        return False  # clients that offer h2c go on with HTTP/1.1

    def _make_room(self) -> None:
        """Close an idle connection, one without any request first; if there is none, refuse this one."""
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
        self._write_timer = self.loop.call_later(self.limits.write_s, self._check_writing, size)

    def _check_writing(self, earlier_size: int) -> None:
        """Abort a connection whose client has not read: closing it would wait for the client."""
        if earlier_size - self.transport.get_write_buffer_size() < MIN_WRITTEN_BYTES:
            self.transport.abort()
        else:
            self._watch_writing()


def connection_class() -> type[Connection]:
    """Return the class of this process's connections, as many as its file handles allow."""

    class Limited(Connection):
        limits = ConnectionLimits(num_connections=_allow_connections())

    return Limited


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
