"""A server that answers every request with what the test wrote down."""

import http.server
import threading
from collections.abc import Iterator
from typing import ClassVar

import pytest


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers every GET with what the test wrote down, and keeps the request."""

    protocol_version = "HTTP/1.1"
    status, headers_sent, body, is_chunked = 200, {}, b"", False
    bodies: ClassVar[list] = []  # answered one after another, before `body`
    num_ended: ClassVar[list] = []  # an item for each connection that was closed
    requests: ClassVar[list] = []
    ports: ClassVar[list] = []

    def do_GET(self) -> None:
        self.requests.append((self.path, dict(self.headers)))
        self.ports.append(self.client_address[1])
        body = self.bodies.pop(0) if self.bodies else self.body
        self.send_response(self.status)
        for name, value in self.headers_sent.items():
            self.send_header(name, value)
        if self.is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in (body[:3], body[3:]):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def finish(self) -> None:
        super().finish()
        self.num_ended.append(1)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def answers() -> Iterator[type[Answers]]:
    handler = type("Handler", (Answers,), {"requests": [], "ports": [], "bodies": [], "num_ended": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        handler.endpoint = f"http://127.0.0.1:{server.server_port}"
        yield handler
        server.shutdown()
