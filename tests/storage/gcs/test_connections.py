"""Connections to one server: through a proxy where the environment names one, and closed with their pool."""

import gc
import itertools
import random
import socketserver
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from google.auth.credentials import AnonymousCredentials

from service.storage.gcs.connections import ConnectionPool, Response
from service.storage.gcs.http import GcsTransport
from service.storage.location import GcsLocation
from service.storage.retry import TransientFault
from tests.stored import quick_limits

TIMEOUT_S = 30


@dataclass
class Proxy:
    """A proxy that refuses every tunnel."""

    address: str
    tunnels: list[str] = field(default_factory=list)  # what it was asked for


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    class Refusal(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            proxy.tunnels.append(self.rfile.readline().decode().rpartition(" ")[0])
            self.wfile.write(b"HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refusal) as server:
        proxy = Proxy(f"127.0.0.1:{server.server_address[1]}")
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield proxy
        server.shutdown()


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def pool(endpoint: str, *, is_proxy_allowed: bool = True, read_timeout_s: float = 30.0) -> ConnectionPool:
    return ConnectionPool(
        endpoint, connect_timeout_s=30, read_timeout_s=read_timeout_s, is_proxy_allowed=is_proxy_allowed
    )


@pytest.mark.parametrize(
    ("endpoint", "tunnel"),
    [
        ("https://example.org", "CONNECT example.org:443"),
        ("https://example.org:8443", "CONNECT example.org:8443"),
        ("http://example.org", "CONNECT example.org:80"),
        ("http://example.org:8080", "CONNECT example.org:8080"),
    ],
)
@pytest.mark.parametrize("scheme", ["http://", ""])
def test_a_proxy_is_asked_for_a_tunnel_to_the_server(
    proxy: Proxy, monkeypatch, endpoint: str, tunnel: str, scheme: str
):
    monkeypatch.setenv(f"{endpoint.partition(':')[0]}_proxy", scheme + proxy.address)
    with pytest.raises(TransientFault, match="the connection broke"):
        pool(endpoint).get("/path", {})
    assert proxy.tunnels == [tunnel]


def test_a_proxy_is_for_the_schemes_and_hosts_that_the_environment_says(answers, proxy: Proxy, monkeypatch):
    def is_answered(**options: bool) -> bool:
        connections = pool(answers.endpoint, **options)
        try:
            connections.get("/path", {}).close()
        except TransientFault:
            return False
        finally:
            connections.close()
        return True

    monkeypatch.setenv("https_proxy", proxy.address)
    assert is_answered()
    monkeypatch.setenv("http_proxy", proxy.address)
    assert not is_answered()
    assert is_answered(is_proxy_allowed=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert is_answered()


def test_googles_own_address_is_the_endpoint_unless_an_emulator_is_named(answers, proxy: Proxy, monkeypatch):
    monkeypatch.setenv("http_proxy", proxy.address)
    monkeypatch.setenv("https_proxy", proxy.address)
    monkeypatch.setattr("google.auth.default", lambda scopes: (AnonymousCredentials(), None))
    location = GcsLocation("bucket", "model")
    with pytest.raises(TransientFault):
        GcsTransport(location, None, quick_limits()).get("o", {}, {})
    assert proxy.tunnels == ["CONNECT storage.googleapis.com:443"]
    emulator = GcsTransport(location, answers.endpoint, quick_limits())
    emulator.get("o", {}, {}).close()
    emulator.close()
    assert len(proxy.tunnels) == 1


def test_a_pool_that_is_forgotten_closes_its_idle_connections(answers):
    connections = pool(answers.endpoint)
    connections.get("/path", {}).close()
    assert not answers.num_ended
    del connections
    gc.collect()
    deadline_s = time.monotonic() + TIMEOUT_S
    while not answers.num_ended:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.parametrize("sizes", [[1, 7, 8000, 300, 8192], [8192], [8191], [100_000], [1], [9000, 3]])
@pytest.mark.parametrize("num_parts", [1, 3])
def test_a_body_comes_whole_in_pieces_of_any_size_whatever_of_it_comes_with_the_headers(sizes: list[int], num_parts):
    body = random.Random(1).randbytes(50_000)

    class Server(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline() != b"\r\n":
                pass
            sent = b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n" + body
            part = -(-len(sent) // num_parts)
            for begin in range(0, len(sent), part):
                self.wfile.write(sent[begin : begin + part])
                time.sleep(0.01)
            self.rfile.read()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Server) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        connections, received = pool(f"http://127.0.0.1:{server.server_address[1]}"), bytearray()
        with connections.get("/path", {}) as response:
            for size in itertools.cycle(sizes):
                buffer = bytearray(size)
                if not (num_bytes := response.readinto(memoryview(buffer))):
                    break
                received += buffer[:num_bytes]
        connections.close()
        server.shutdown()
    assert received == body


@pytest.mark.parametrize("num_bytes", [0, 3])
def test_a_server_that_falls_silent_is_a_fault_that_may_pass(num_bytes: int):
    class Silence(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline() != b"\r\n":
                pass
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n" + bytes(num_bytes))
            self.rfile.read()  # until the other side gives up

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Silence) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        connections = pool(f"http://127.0.0.1:{server.server_address[1]}", read_timeout_s=1)
        for read in (read_all, read_into_memory):
            with connections.get("/path", {}) as response, pytest.raises(TransientFault, match="the read timed out"):
                read(response)
        server.shutdown()


def read_all(response: Response) -> None:
    while response.read(10):
        pass


def read_into_memory(response: Response) -> None:
    while response.readinto(memoryview(bytearray(10))):
        pass
