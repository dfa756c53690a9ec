"""Limits of a connection: every test speaks through a socket to the protocol that serves the port."""

import contextlib
import socket
import subprocess
import sys
import time

import pytest

from service.server.app import bind
from service.server.connection import Connection, ConnectionLimits
from tests.sockets import body_from, connected, read_to_end, refusal, served, wait_until

LARGE = b"x" * (32 * 1024 * 1024)


class Impatient(Connection):
    """Times that a test can wait for."""

    limits = ConnectionLimits(head_s=0.3, write_s=0.3)


class Narrow(Connection):
    """Room for one unread answer."""

    limits = ConnectionLimits(unread_bytes=len(LARGE) * 3 // 2)


class Few(Connection):
    """A number of connections that a test can reach."""

    limits = ConnectionLimits(num_connections=12)


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
    with served(app, Impatient) as server:
        yield server


@pytest.fixture(scope="module")
def patient_server():
    with served(app, Few) as server:
        yield server


def takes(client):
    """Return whether the server takes one more byte."""
    time.sleep(0.05)
    try:
        client.sendall(b"x")
    except ConnectionError:
        return False
    return True


def answer_to(server, *parts):
    """Send parts of a request, each in a packet of its own, and return the status and the message that comes back."""
    with connected(server) as client:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                client.sendall(part)
        status, error = refusal(read_to_end(client))
    return status, error["message"]


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
        assert client.recv(1)
        began_s = time.monotonic()
        wait_until(lambda: not server.server_state.connections)
        assert time.monotonic() - began_s < 20  # the limit is 0.3 s; other ends come after half a minute
        assert len(read_to_end(client)) < len(LARGE)


def test_a_client_that_reads_a_large_answer_too_slowly_is_disconnected(server):
    wait_until(lambda: not server.server_state.connections)
    with connected(server, so_rcvbuf=4096) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")

        def has_ended():
            with contextlib.suppress(ConnectionError):
                client.recv(64 * 1024)  # more than the least number of bytes
            return not server.server_state.connections

        wait_until(has_ended)


def test_clients_that_leave_large_answers_unread_have_a_bound_together():
    def num_unread():
        return sum(each.unread_bytes > 0 for each in server.server_state.connections)

    with served(app, Narrow) as server, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(server)) for _ in range(3)]
        wait_until(lambda: len(server.server_state.connections) == len(clients))
        for number, client in enumerate(clients):
            client.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert client.recv(1)
            wait_until(lambda number=number: len(server.server_state.connections) == len(clients) - number)
            wait_until(lambda: num_unread() == 1)
        *others, last = clients
        assert all(len(read_to_end(client)) < len(LARGE) for client in others)
        assert len(read_to_end(last)) > len(LARGE)


def test_a_client_that_reads_slowly_gets_all(patient_server):
    with connected(patient_server, so_rcvbuf=65536) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        received = 0
        while more := client.recv(1024 * 1024):
            received += len(more)
            time.sleep(0.002)
    assert received > len(LARGE)


def test_one_connection_more_takes_the_place_of_a_silent_one_and_never_of_a_request(patient_server):
    server, limit = patient_server, Few.limits.num_connections
    wait_until(lambda: not server.server_state.connections)
    with contextlib.ExitStack() as stack:
        busy = [stack.enter_context(connected(server)) for _ in range(limit - 1)]
        for client in busy:
            client.sendall(HEAD + b"Content-Length: 2\r\n\r\nh")
        silent = stack.enter_context(connected(server))
        wait_until(lambda: len(server.server_state.connections) == limit)
        wait_until(lambda: len(server.server_state.tasks) == limit - 1)
        last = stack.enter_context(connected(server))
        assert read_to_end(silent) == b""
        last.sendall(HEAD + b"Content-Length: 2\r\n\r\nh")
        wait_until(lambda: len(server.server_state.tasks) == limit)
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


def test_no_part_of_an_answer_waits_for_an_acknowledgement(server):
    with connected(server) as client:
        client.sendall(HEAD + b"Content-Length: 2\r\n\r\nhi")
        assert body_from(client) == b"2"
        [connection] = [each for each in server.server_state.connections if each.client == client.getsockname()]
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


ALLOWED = """
import resource
from service.server.connection import connection_class
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(connection_class().limits.num_connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "expected"), [(64, 300, "150 300"), (64, 1000, "744 1000"), (64, "hard", "4096 4352")], ids=str
)
def test_there_are_file_handles_for_more_than_all_connections(soft, hard, expected):
    code = ALLOWED.format(soft=soft, hard=hard)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
