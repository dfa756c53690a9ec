"""HTTP/1.1 GETs over connections that stay open, with bodies that go straight into memory of the caller's.

The usual clients hand out each part of a body as new bytes, and take a millisecond of Python for a request; reading
weights at several gigabytes a second, both are a good part of the work.
"""

import contextlib
import http.client
import urllib.request
import weakref
from collections.abc import Iterator, Mapping
from urllib.parse import SplitResult, urlsplit


class Answer:
    """Status and headers, and a body that is read as it arrives."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self._response = response
        self._left_bytes = response.length

    def read_into(self, room: memoryview) -> int:
        """Put what arrives next at the beginning of `room` and tell how much that is; 0 at the end."""
        if self._left_bytes is None:  # in chunks of the server's making
            data = self._response.read1(len(room))
            room[: len(data)] = data
            return len(data)
        # The response's own methods would wait until the room is full; its buffered reader takes what is there.
        num_bytes = self._response.fp.readinto1(room[: self._left_bytes]) if self._left_bytes else 0
        self._left_bytes -= num_bytes
        return num_bytes

    def read(self, max_bytes: int) -> bytes:
        """Read the rest of the body, or the beginning of a long one."""
        data = self._response.read(max_bytes)
        if self._left_bytes is not None:
            self._left_bytes -= len(data)
        return data

    @property
    def is_at_end(self) -> bool:
        """Whether the connection can be used again."""
        is_read = self._response.isclosed() if self._left_bytes is None else self._left_bytes == 0
        return is_read and not self._response.will_close


class KeepAlive:
    """Connections to one server; safe to use from several threads."""

    def __init__(
        self, endpoint: str, *, connect_timeout_s: float, read_timeout_s: float, is_proxy_allowed: bool
    ) -> None:
        """Remember where to connect to; nothing is opened yet.

        Args:
            endpoint: `https://host[:port]` or `http://host[:port]`.
            connect_timeout_s: for a new connection.
            read_timeout_s: between two arrivals of bytes.
            is_proxy_allowed: whether to go through the proxy that the environment names, if it names one.
        """
        self._address = urlsplit(endpoint)
        self._connect_timeout_s, self._read_timeout_s = connect_timeout_s, read_timeout_s
        self._proxy = _proxy_for(self._address) if is_proxy_allowed else None
        self._idle: list[http.client.HTTPConnection] = []
        # Whoever located a checkpoint may read from it much later, and has no moment to close it.
        self._finalizer = weakref.finalize(self, _close_all, self._idle)

    def close(self) -> None:
        """Close what is idle; what is in use closes itself."""
        _close_all(self._idle)

    @contextlib.contextmanager
    def get(self, target: str, headers: Mapping[str, str]) -> Iterator[Answer]:
        """Send one GET; the body is not read yet, and a body that is not read to its end costs the connection.

        Raises:
            OSError, HTTPException: the connection could not be made or broke.
        """
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        is_reusable = False
        try:
            connection.request("GET", self._address.path.rstrip("/") + target, headers=dict(headers))
            response = connection.getresponse()
            answer = Answer(response)
            yield answer
            is_reusable = answer.is_at_end
            response.close()
        finally:
            if is_reusable:
                self._idle.append(connection)
            else:
                connection.close()

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


def _proxy_for(address: SplitResult) -> SplitResult | None:
    proxy = urllib.request.getproxies().get(address.scheme)
    if not proxy or urllib.request.proxy_bypass(address.netloc):
        return None
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def _close_all(connections: list[http.client.HTTPConnection]) -> None:
    while connections:
        connections.pop().close()
