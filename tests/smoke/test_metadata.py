"""The identity token of a machine on Google Cloud."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from service.smoke import identity


@pytest.fixture
def metadata(monkeypatch):
    """A metadata server; yields the paths that it was asked for."""
    paths = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            paths.append(self.path)
            self.send_response(200 if self.headers.get("Metadata-Flavor") == "Google" else 403)
            self.send_header("Metadata-Flavor", "Google")
            self.end_headers()
            self.wfile.write(b"t0ken")

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    monkeypatch.setattr(identity, "METADATA_HOST", f"127.0.0.1:{server.server_port}")
    yield paths
    server.shutdown()
    server.server_close()


def test_the_metadata_server_is_asked_for_the_audience(metadata):
    assert identity.identity_token("https://a.run.app") == "t0ken"
    [path] = metadata
    assert path.endswith("/default/identity?audience=https%3A%2F%2Fa.run.app")
