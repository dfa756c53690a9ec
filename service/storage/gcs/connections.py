"""HTTP/1.1 GETs over keep-alive connections, with bodies read directly into the caller's memory.

The usual clients allocate new bytes for each part of a body and spend a millisecond of Python on each request. At
several gigabytes a second, both take a large share of the time.
"""

import http.client
import io
import ssl
import time
import urllib.request
import weakref
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from service.storage.retry import TransientFault

BROKEN_CONNECTION = (OSError, http.client.HTTPException)
# A body is read in one go for so long, so that whoever reads it can look whether it still should.
READ_S = 0.1


class Response:
    """Status, headers and an unread body; `close` returns the connection to the pool if the body was fully read."""

    def __init__(self, connection: http.client.HTTPConnection, idle: list[http.client.HTTPConnection]) -> None:
        """Receive the status and the headers."""
        self._connection, self._idle = connection, idle
        self._response = connection.getresponse()
        self._left_bytes = self._response.length
        self._may_be_buffered = True  # what came with the headers
        self.status = self._response.status
        self.headers = self._response.headers

    def __enter__(self) -> "Response":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def readinto(self, buffer: memoryview) -> int:
        """Read bytes into the start of `buffer`, for a moment or until it is full or the body at its end.

        A record of TLS has 16 KiB: with the GIL for each, a gigabyte would take a second from what a start imports.

        Returns:
            The number of bytes; 0 at the end of the body.

        Raises:
            TransientFault: the connection broke or timed out.
        """
        try:
            if self._left_bytes is None:  # chunked transfer coding
                data = self._response.read1(len(buffer))
                buffer[: len(data)] = data
                return len(data)
            num_bytes = self._receive(buffer[: self._left_bytes])
        except BROKEN_CONNECTION as error:
            raise connection_fault(error) from error
        self._left_bytes -= num_bytes
        return num_bytes

    def _receive(self, buffer: memoryview) -> int:
        reader, num_bytes = self._response.fp, 0
        if self._may_be_buffered and buffer:
            num_asked = min(len(buffer), io.DEFAULT_BUFFER_SIZE)
            data = reader.read1(num_asked)  # of the buffer, or else of the socket
            num_bytes = len(data)
            self._may_be_buffered = num_bytes == num_asked < io.DEFAULT_BUFFER_SIZE
            buffer[:num_bytes] = data
            if not data:
                return 0
        end_s = time.monotonic() + READ_S
        receive = reader.raw.readinto
        while num_bytes < len(buffer) and (num_received := receive(buffer[num_bytes:])):
            num_bytes += num_received
            if time.monotonic() > end_s:
                break
        return num_bytes

    def read(self, max_bytes: int) -> bytes:
        """Read the rest of the body, up to `max_bytes`.

        Raises:
            TransientFault: the connection broke or timed out.
        """
        try:
            data = self._response.read(max_bytes)
        except BROKEN_CONNECTION as error:
            raise connection_fault(error) from error
        if self._left_bytes is not None:
            self._left_bytes -= len(data)
        return data

    def close(self) -> None:
        """Return the connection to the pool, or close it if bytes of this body may still arrive on it."""
        is_at_end = self._response.isclosed() if self._left_bytes is None else self._left_bytes == 0
        self._response.close()
        if is_at_end and not self._response.will_close:
            self._idle.append(self._connection)
        else:
            self._connection.close()


class ConnectionPool:
    """Connections to one server; safe to use from several threads."""

    def __init__(
        self, endpoint: str, *, connect_timeout_s: float, read_timeout_s: float, is_proxy_allowed: bool
    ) -> None:
        """Name the server; nothing is opened yet.

        Args:
            endpoint: `https://host[:port]` or `http://host[:port]`.
            connect_timeout_s: for a new connection.
            read_timeout_s: between two arrivals of bytes.
            is_proxy_allowed: whether to use the proxy from the environment, if it sets one.
        """
        self._address = urlsplit(endpoint)
        self._connect_timeout_s, self._read_timeout_s = connect_timeout_s, read_timeout_s
        self._proxy = _proxy_for(self._address) if is_proxy_allowed else None
        self._idle: list[http.client.HTTPConnection] = []
        # A checkpoint may be read long after it was located, so no caller knows when to close.
        self._finalizer = weakref.finalize(self, _close_all, self._idle)

    def close(self) -> None:
        """Close the idle connections; one in use is closed by its response."""
        _close_all(self._idle)

    def get(self, target: str, headers: Mapping[str, str]) -> Response:
        """Send one GET and receive the headers of its response.

        Raises:
            TransientFault: the connection failed, broke or timed out.
        """
        connection = None
        try:
            connection = self._take_idle() or self._connect()
            connection.request("GET", self._address.path.rstrip("/") + target, headers=dict(headers))
            return Response(connection, self._idle)
        except BROKEN_CONNECTION as error:
            if connection is not None:
                connection.close()
            raise connection_fault(error) from error

    def _take_idle(self) -> http.client.HTTPConnection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _connect(self) -> http.client.HTTPConnection:
        is_tls = self._address.scheme == "https"
        kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
        end = self._proxy or self._address
        assert end.hostname is not None
        connection = kind(end.hostname, end.port, timeout=self._connect_timeout_s)
        if self._proxy is not None:
            connection.set_tunnel(self._address.hostname or "", self._address.port or (443 if is_tls else 80))
        connection.connect()
        connection.sock.settimeout(self._read_timeout_s)
        return connection


def connection_fault(error: Exception) -> TransientFault:
    """Describe a broken connection without the error's own text, which may contain a URL with its query."""
    if isinstance(error, TimeoutError):
        return TransientFault("the read timed out")
    if isinstance(error, ssl.SSLError):
        return TransientFault("the TLS handshake failed")
    return TransientFault(f"the connection broke ({type(error).__name__})")


def _proxy_for(address: SplitResult) -> SplitResult | None:
    proxy = urllib.request.getproxies().get(address.scheme)
    if not proxy or urllib.request.proxy_bypass(address.netloc):
        return None
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def _close_all(connections: list[http.client.HTTPConnection]) -> None:
    while connections:
        connections.pop().close()
