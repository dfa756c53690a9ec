"""What a client may do with a connection: every test speaks through a socket to the protocol that serves the port."""

import asyncio
import contextlib
import json
import socket
import sys
import threading
import time

import pytest
import uvicorn

from service.server.app import bind
from service.server.connection import Connection, ConnectionLimits

PATIENCE_S = 20
LARGE = b"x" * (32 * 1024 * 1024)


class Impatient(Connection):
    """Limits that a test can wait for."""

    limits = ConnectionLimits(head_s=0.3, write_s=0.3, num_connections=12)


async def app(scope, receive, send):
    """Answer `/large` with many bytes, `/early` without reading the body, all else with the size of the body."""
    size, more = 0, scope["path"] != "/early"
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message["body"]), message["more_body"]
    body = LARGE if scope["path"] == "/large" else str(size).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture(scope="module")
def server():
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, http=Impatient, lifespan="off", log_config=None, timeout_keep_alive=60))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    server.address = listener.getsockname()
    yield server
    server.should_exit = server.force_exit = True
    thread.join(PATIENCE_S)
    listener.close()


@contextlib.contextmanager
def connected(server, **options):
    with socket.socket() as client:
        for option, value in options.items():
            client.setsockopt(socket.SOL_SOCKET, getattr(socket, option.upper()), value)
        client.settimeout(PATIENCE_S)
        client.connect(server.address)
        yield client


def read_to_end(client):
    """Return what the server sends until it closes the connection; fails by a timeout if it does not."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while more := client.recv(65536):
            received += more
    return received


def body_from(client):
    """Return the body of the next answer."""
    received = b""
    while not (head := received.partition(b"\r\n\r\n"))[1]:
        received += client.recv(65536)
    length = int(head[0].lower().partition(b"content-length: ")[2].split()[0])
    body = head[2]
    while len(body) < length:
        body += client.recv(65536)
    return body


def takes(client):
    """Return whether the server takes one more byte."""
    time.sleep(0.05)
    try:
        client.sendall(b"x")
    except ConnectionError:
        return False
    return True


def answer_to(server, *parts):
    """Send parts of a request, each in a packet of its own, and return the status and the error that comes back."""
    with connected(server) as client:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                client.sendall(part)
        head, _, body = read_to_end(client).partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head.lower(), head
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return int(head.split()[1]), error["message"]


def wait_until(is_so):
    end_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.01)


HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"


def test_a_request_is_answered_and_the_connection_stays(server):
    with connected(server) as client:
        for _ in range(3):
            client.sendall(HEAD + b"Content-Length: 2\r\n\r\nhi")
            assert body_from(client) == b"2"
            time.sleep(2 * Impatient.limits.head_s)


@pytest.mark.parametrize("begin", [b"", b"GET / HT", HEAD], ids=["nothing", "half a line", "half a head"])
def test_a_silent_client_is_disconnected(server, begin):
    with connected(server) as client:
        client.sendall(begin)
        assert read_to_end(client) == b""


def test_a_silent_client_is_disconnected_in_a_later_request_too(server):
    with connected(server) as client:
        client.sendall(HEAD + b"Content-Length: 2\r\n\r\nhi")
        assert body_from(client) == b"2"
        client.sendall(b"GET / HT")
        assert read_to_end(client) == b""


def test_a_client_that_goes_on_sending_a_body_that_nothing_reads_is_disconnected(server):
    with connected(server) as client:
        client.sendall(b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nhi")
        assert body_from(client) == b"0"
        wait_until(lambda: not takes(client))


def test_heads_have_a_size_and_a_number_of_headers(server):
    assert answer_to(server, HEAD, b"X: " + b"a" * 64 * 1024 * 1024)[0] == 431
    # In one packet each: h11 alone counts the bytes of an incomplete head.
    many = b"".join(b"a%d:b\r\n" % i for i in range(4000))
    assert answer_to(server, HEAD + many + b"\r\n") == (431, "The request is malformed: more than 100 headers.")
    large = b"".join(b"a%d:%s\r\n" % (i, b"b" * 1000) for i in range(90))
    assert answer_to(server, HEAD + large + b"\r\n")[0] == 431


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (
            HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "both Content-Length and Transfer-Encoding",
        ),
        (HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nabc", "conflicting Content-Length headers"),
        (b"POST / HTTP/1.1\r\n\r\n", "Missing mandatory Host: header"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "illegal request line"),
    ],
)
def test_a_request_that_another_server_could_read_otherwise_is_refused(server, request_, reason):
    assert answer_to(server, request_) == (400, f"The request is malformed: {reason}.")


def test_a_million_chunks_of_a_byte_are_refused_and_few_small_ones_are_read(server):
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    status, message = answer_to(server, chunked, b"1\r\na\r\n" * 1_000_000, b"0\r\n\r\n")
    assert status == 400
    assert "chunks of less than 64 bytes on average" in message
    with connected(server) as client:
        client.sendall(chunked + b"1\r\na\r\n" * 900 + b"0\r\n\r\n")
        assert body_from(client) == b"900"


def test_an_offer_of_another_protocol_is_ignored_in_silence(server, caplog):
    with connected(server) as client:
        client.sendall(HEAD + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n")
        assert body_from(client) == b"0"
    assert caplog.records == []


def test_a_client_that_does_not_read_is_disconnected(server):
    wait_until(lambda: not server.server_state.connections)
    with connected(server, so_rcvbuf=4096) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        wait_until(lambda: len(server.server_state.connections) == 1)
        wait_until(lambda: not server.server_state.connections)
        assert len(read_to_end(client)) < len(LARGE)


def test_a_client_that_reads_slowly_gets_all(server):
    with connected(server, so_rcvbuf=65536) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        received = 0
        while more := client.recv(1024 * 1024):
            received += len(more)
            time.sleep(0.002)
    assert received > len(LARGE)


def test_one_connection_more_takes_the_place_of_a_silent_one_and_never_of_a_request(server):
    limit = Impatient.limits.num_connections
    wait_until(lambda: not server.server_state.connections)
    with contextlib.ExitStack() as stack:
        busy = [stack.enter_context(connected(server)) for _ in range(limit - 1)]
        for client in busy:
            client.sendall(HEAD + b"Content-Length: 2\r\n\r\nh")
        silent = stack.enter_context(connected(server))
        wait_until(lambda: len(server.server_state.connections) == limit)
        last = stack.enter_context(connected(server))
        assert read_to_end(silent) == b""
        last.sendall(HEAD + b"Content-Length: 2\r\n\r\nh")
        wait_until(lambda: len(server.server_state.connections) == limit)
        status, message = answer_to(server)
        assert (status, message) == (503, f"The server is at its limit of {limit} connections. Try again.")
        for client in (*busy, last):
            client.sendall(b"i")
            assert body_from(client) == b"2"


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no such options")
def test_the_kernel_ends_connections_whose_peers_are_lost():
    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 30
            assert 0 < accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 30_000
