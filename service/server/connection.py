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
    write_s: float = 30.0  # until the client has read a part of what is buffered for it
    unread_bytes: int = 256 * 1024 * 1024  # buffered for all clients together, who may read slowly and be many
    num_connections: int = MAX_CONNECTIONS


# Of what is buffered for a client, the least that it must read within `write_s`: a part, so that a large answer is
# not held for hours, and a number of bytes. Less means a < 4 kbit/s link or a client that holds it on purpose.
MIN_WRITTEN_PART, MIN_WRITTEN_BYTES = 1 / 20, 16 * 1024
# Answers that are smaller take no room from others.
LARGE_BYTES = 64 * 1024


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
        self._unread_since_s = 0.0  # by the loop's clock, while something is buffered

    @property
    def unread_bytes(self) -> int:
        """What is buffered for the client."""
        return self.transport.get_write_buffer_size()

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
        self._unread_since_s = self.loop.time()
        self._watch_writing(max(MIN_WRITTEN_BYTES, int(self.unread_bytes * MIN_WRITTEN_PART)))
        if self.unread_bytes >= LARGE_BYTES:
            self._bound_unread()

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

    def _watch_writing(self, least_bytes: int) -> None:
        # Defends against T27.
        self._write_timer = self.loop.call_later(
            self.limits.write_s, self._check_writing, self.unread_bytes, least_bytes
        )

    def _check_writing(self, earlier_bytes: int, least_bytes: int) -> None:
        """Abort a connection whose client has not read enough; closing it would wait for the client."""
        if earlier_bytes - self.unread_bytes < least_bytes:
            self.transport.abort()
        else:
            self._watch_writing(least_bytes)

    def _bound_unread(self) -> None:
        """Abort those other connections whose clients have left large answers unread for longest."""
        waiting = [each for each in self.connections if isinstance(each, Connection) and each is not self]
        waiting = [each for each in waiting if each.unread_bytes >= LARGE_BYTES]
        surplus_bytes = self.unread_bytes + sum(each.unread_bytes for each in waiting) - self.limits.unread_bytes
        for each in sorted(waiting, key=lambda each: each._unread_since_s):
            if surplus_bytes <= 0:
                break
            surplus_bytes -= each.unread_bytes
            each.transport.abort()


def connection_class() -> type[Connection]:
    """Return the connection class of this process, limited by its file descriptors."""

    class Limited(Connection):
        limits = ConnectionLimits(num_connections=_allow_connections())

    return Limited


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
