"""A client that sees what happens to its socket: an answer that is whole, cut, or reset."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 64 * 1024
MODEL = "levserve-demo"


@dataclass
class Reply:
    """What a client has received until the server ended the connection."""

    received: bytearray = field(default_factory=bytearray)
    times_s: list[float] = field(default_factory=list)  # of each read, by `time.monotonic`
    is_reset: bool = False

    @property
    def status(self) -> int | None:
        """The status; None if there is none."""
        first = self.received.split(b"\r\n", 1)[0].split()
        return int(first[1]) if len(first) > 1 and first[0].startswith(b"HTTP/") else None

    @property
    def body(self) -> bytes:
        """The body without the framing of chunks; it may be cut."""
        head, _, rest = bytes(self.received).partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" not in head.lower():
            return rest
        chunks, begin = [], 0
        while (end := rest.find(b"\r\n", begin)) > begin:
            length = int(rest[begin:end], 16)
            chunks.append(rest[end + 2 : end + 2 + length])
            begin = end + 2 + length + 2
        return b"".join(chunks)

    @property
    def is_whole(self) -> bool:
        """Whether the answer has its last byte."""
        head, found, rest = bytes(self.received).partition(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        return bool(found) and (rest.endswith(b"0\r\n\r\n") if not lengths else len(rest) == int(lengths[0]))

    @property
    def events(self) -> list[str]:
        """The data of all server-sent events."""
        lines = self.body.decode(errors="replace").split("\n")
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]

    @property
    def end(self) -> str:
        """How the answer has ended: `complete`, an error's code, `reset` or `cut`."""
        if not self.is_whole:
            return "reset" if self.is_reset else "cut"
        last = self.events[-1] if self.events else self.body.decode(errors="replace")
        if last == "[DONE]":
            return "complete"
        with contextlib.suppress(ValueError):
            content = json.loads(last)
            if isinstance(content, dict):
                return content["error"]["code"] or content["error"]["type"] if "error" in content else "complete"
        return "cut"


def post(path: str, body: bytes, *, close: bool = True) -> bytes:
    """Return the bytes of a POST."""
    head = f"POST {path} HTTP/1.1\r\nHost: soak\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + (b"Connection: close\r\n\r\n" if close else b"\r\n") + body


def completion(**fields: Any) -> bytes:
    """Return the bytes of a streamed completion that uses its whole `max_tokens`."""
    body = {"model": MODEL, "prompt": "Count", "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stream": True}
    return post("/v1/completions", json.dumps(body | fields).encode())


@contextlib.asynccontextmanager
async def connected(port: int, *, receive_buffer: int | None = None) -> AsyncIterator[socket.socket]:
    """Connect; closing resets the connection if the answer was not read."""
    with socket.socket() as client:
        client.setblocking(False)
        if receive_buffer is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await asyncio.get_running_loop().sock_connect(client, (LOOPBACK, port))
        yield client


async def ask(port: int, request: bytes, *, reply: Reply | None = None) -> Reply:
    """Send a request and read until the server closes; a failed write is no failure if there is an answer.

    Args:
        port: of the service.
        request: head and body.
        reply: receives what arrives, for a caller that looks on.
    """
    reply = Reply() if reply is None else reply
    async with connected(port) as client:
        sending = asyncio.create_task(_send(client, request))
        try:
            await read(client, reply)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    return reply


async def read(client: socket.socket, reply: Reply) -> None:
    """Read until the server closes the connection."""
    loop = asyncio.get_running_loop()
    try:
        while data := await loop.sock_recv(client, CHUNK_BYTES):
            reply.received += data
            reply.times_s.append(time.monotonic())
    except ConnectionError:
        reply.is_reset = True


async def _send(client: socket.socket, request: bytes) -> None:
    with contextlib.suppress(OSError):
        await asyncio.get_running_loop().sock_sendall(client, request)


async def metrics(port: int) -> dict[str, float]:
    """Return the series without labels, or with the model's name alone, that /metrics shows."""
    reply = await ask(port, b"GET /metrics HTTP/1.1\r\nHost: soak\r\nConnection: close\r\n\r\n")
    lines = [line for line in reply.body.decode().splitlines() if line and not line.startswith("#")]
    return {line.split("{")[0].split(" ")[0]: float(line.rsplit(" ", 1)[1]) for line in lines}
