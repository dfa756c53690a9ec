"""An app behind a real port in this process, and clients that speak to it byte by byte."""

import asyncio
import contextlib
import json
import socket
import threading
import time

import uvicorn

from service.server.app import bind

PATIENCE_S = 60  # a machine at work is slow, and only a failure waits so long


@contextlib.contextmanager
def served(app, connection):
    """Serve an app with a class of connections; yields the server, whose `address` and `loop` are set."""
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(
        uvicorn.Config(app, http=connection, lifespan="off", log_config=None, timeout_keep_alive=60)
    )

    async def main():
        server.loop = asyncio.get_running_loop()
        await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    server.address = listener.getsockname()
    wait_until(lambda: server.started)
    try:
        yield server
    finally:
        server.should_exit = server.force_exit = True
        thread.join(PATIENCE_S)
        listener.close()


@contextlib.contextmanager
def connected(server, **options):
    """Connect; `so_rcvbuf` and the like are options of the socket."""
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
    body = bytearray(head[2])
    while len(body) < length:
        body += client.recv(65536)
    return bytes(body)


def refusal(received):
    """Return the status and the error of an answer after which the server closes the connection."""
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head.lower(), head
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return int(head.split()[1]), error


def wait_until(is_so):
    end_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.01)
