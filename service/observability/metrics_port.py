"""A second port for metrics without a key, for scrapers that cannot send one. It must not be exposed publicly.

It has its own threads, so scrapes are answered even while the event loop or the device is stuck.
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

from service.errors import CannotListen
from service.observability.metrics import LOAD_CONTENT_TYPE, LOAD_PATH, Metrics

logger = logging.getLogger(__name__)

IDLE_S = 120  # until an idle scraper's connection is closed


@contextmanager
def metrics_port(metrics: Metrics, host: str, port: int | None) -> Iterator[int | None]:
    """Serve metrics while the body runs, and yield the port; without a port, do nothing.

    Args:
        metrics: the series.
        host: the address to listen on.
        port: METRICS_PORT; 0 picks a free one.

    Raises:
        CannotListen: another process uses the port, or it needs privileges.
    """
    if port is None:
        yield None
        return
    try:
        server = _Server(metrics, host, port)
    except OSError as error:
        raise CannotListen.because(error, host, port, variable="METRICS_PORT") from error
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
    """A server that returns all series on every path except LOAD_PATH."""

    daemon_threads = True  # an open scraper connection does not keep the process alive

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.metrics = metrics
        super().__init__((host, port), _Scrape)

    @override
    def server_bind(self) -> None:
        # Skips HTTPServer's lookup of the host name, which may wait for DNS.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


class _Scrape(BaseHTTPRequestHandler):
    """A keep-alive connection, which halves the time of a picker's scrape."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    wbufsize = -1  # head and body in one packet

    def do_GET(self) -> None:
        """Respond with the series for the path."""
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
    def log_message(self, format: str, *args: object) -> None: ...

    def _send(self, content: bytes, headers: dict[str, str]) -> None:
        self.send_response_only(200)
        for name, value in {**headers, "content-length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
