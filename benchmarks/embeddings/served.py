"""Clients of /v1/embeddings that keep their connections: each sends a text, and the next one once it is answered.

They share the cores with the service, so requests are bytes that were made before, and answers are not parsed.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import override

from benchmarks.contenders import HttpServer

HEAD_END = b"\r\n\r\n"
LENGTH = b"content-length: "


class _Client(asyncio.Protocol):
    """One connection, on which one request after the other is answered."""

    def __init__(self, requests: Iterator[bytes]) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies_s: list[float] = []
        self._requests = requests
        self._received = bytearray()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    @override
    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(HEAD_END)
        if end < 0:
            return
        head = bytes(self._received[:end]).lower()
        assert head.startswith(b"http/1.1 200"), self._received
        length = int(head.split(LENGTH, 1)[1].split(b"\r\n", 1)[0])
        if len(self._received) == end + len(HEAD_END) + length:
            self.latencies_s.append(time.perf_counter() - self._sent_s)
            self._received.clear()
            self._send()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the service closed the connection"))

    def _send(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self.done.set_result(None)
            self._transport.close()
            return
        self._sent_s = time.perf_counter()
        self._transport.write(request)


def send_texts(server: HttpServer, texts: Sequence[str], num_clients: int) -> dict[str, float]:
    """Have so many clients send all texts; return the seconds of all, and the median latency of one in seconds."""
    requests = [_request(server, text) for text in texts]
    began_s = time.perf_counter()
    latencies_s = asyncio.run(_send_all(server.port, requests, num_clients))
    return {"seconds": time.perf_counter() - began_s, "p50_s": statistics.median(latencies_s)}


async def _send_all(port: int, requests: Sequence[bytes], num_clients: int) -> list[float]:
    left, loop = iter(requests), asyncio.get_running_loop()
    pairs = [await loop.create_connection(lambda: _Client(left), "127.0.0.1", port) for _ in range(num_clients)]
    clients = [client for _, client in pairs]
    await asyncio.gather(*(client.done for client in clients))
    return [latency_s for client in clients for latency_s in client.latencies_s]


def _request(server: HttpServer, text: str) -> bytes:
    body = json.dumps({"model": server.model, "input": text, "encoding_format": "base64"}).encode()
    head = f"Host: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"POST /v1/embeddings HTTP/1.1\r\n{head}\r\n\r\n".encode() + body
