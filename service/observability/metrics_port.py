"""A second port for the series alone, without a key: for scrapers that cannot send one. It is not to be published.

It has threads of its own, so a scrape is answered even while the event loop or the device is stuck.
"""

import gzip
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import override

from prometheus_client.exposition import choose_encoder

from service.errors import PortInUse
from service.observability.metrics import LOAD_CONTENT_TYPE, LOAD_PATH, Metrics

logger = logging.getLogger(__name__)

IDLE_S = 120  # until a scraper's connection is closed


@contextmanager
def metrics_port(metrics: Metrics, host: str, port: int | None) -> Iterator[int | None]:
    """Answer scrapes at the port that the body gets; with no port, do nothing.

    Args:
        metrics: the series.
        host: the address to listen on.
        port: METRICS_PORT; 0 picks a free one.

    Raises:
        PortInUse: another process holds it.
    """
    if port is None:
        yield None
        return
    try:
        server = _Server(metrics, host, port)
    except OSError as error:
        raise PortInUse(host, port, error.strerror or str(error)) from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    logger.info("metrics listening", extra={"host": host, "port": server.server_port})
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    """A server whose every path is that of all series, but one."""

    daemon_threads = True  # a scraper that holds its connection does not hold the process

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.metrics = metrics
        super().__init__((host, port), _Scrape)

    @override
    def server_bind(self) -> None:
        # Without HTTPServer's look-up of the host's name, which may wait for a name server.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


class _Scrape(BaseHTTPRequestHandler):
    """One connection; pickers keep it for many scrapes, which saves half of each one's time."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    wbufsize = -1  # head and body in one packet

    def do_GET(self) -> None:
        """Answer with the series that the path names."""
        assert isinstance(self.server, _Server)
        metrics = self.server.metrics
        if self.path.partition("?")[0] == LOAD_PATH:
            self._send(metrics.load_exposition(), {"content-type": LOAD_CONTENT_TYPE})
            return
        encode, content_type = choose_encoder(self.headers.get("accept", ""))
        content, headers = encode(metrics.shown), {"content-type": content_type}  # pyright: ignore[reportArgumentType]
        if "gzip" in self.headers.get("accept-encoding", ""):
            content, headers = gzip.compress(content, 6), headers | {"content-encoding": "gzip"}
        self._send(content, headers)

    do_HEAD = do_GET

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def _send(self, content: bytes, headers: dict[str, str]) -> None:
        self.send_response_only(200)
        for name, value in {**headers, "content-length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
