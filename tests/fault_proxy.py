"""An HTTP proxy that injects faults between a client and an object store's emulator.

The client needs no special header and sees the store's own answers, except where a `Fault` matches the request. It
runs in a thread of the test's process, so a test can ask it afterwards what was requested.
"""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

CHUNK_BYTES = 64 * 1024
MAX_HEAD_BYTES = 1024 * 1024


@dataclass
class Fault:
    """A fault of the requests whose line matches; all fields that are set apply together.

    A request line reads `GET /storage/v1/b/BUCKET/o/NAME?alt=media&generation=1 bytes=0-1023`.
    """

    match: str  # a regular expression, searched in the request line
    times: int = 1  # how many matching requests are hit; later ones pass
    skip: int = 0  # how many matching requests pass first
    status: int | None = None  # answer with this status instead
    retry_after_s: int | None = None  # with `status`
    is_reset: bool = False  # close the connection without an answer
    cut_after_bytes: int | None = None  # announce the whole body and close after so many bytes of it
    stall_after_bytes: int | None = None  # fall silent for `stall_s` after so many bytes of the body
    stall_s: float = 0.0
    flipped_byte: int | None = None  # change one bit of this byte of the body
    has_wrong_hash: bool = False  # change the X-Goog-Hash header
    bytes_per_s: float | None = None  # send the body this slowly
    before: Callable[[], None] | None = None  # called before the request is passed on


class FaultProxy:
    """A running proxy; `url` is where clients go."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream_port = upstream_port
        self._faults: list[Fault] = []
        self._lines: list[str] = []
        self._hits: list[str] = []
        self._lock = threading.Lock()
        self._connections: set[asyncio.Task] = set()  # the loop itself holds tasks weakly
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=MAX_HEAD_BYTES))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def set_faults(self, faults: Sequence[Fault]) -> None:
        """Replace the faults, and forget earlier requests and hits."""
        with self._lock:
            self._faults = list(faults)
            self._lines, self._hits = [], []

    def requests(self, pattern: str = "") -> list[str]:
        """The request lines since the faults were set, as far as they match."""
        with self._lock:
            return [line for line in self._lines if re.search(pattern, line)]

    def hits(self) -> list[str]:
        """The request lines that were broken."""
        with self._lock:
            return list(self._hits)

    def close(self) -> None:
        """Stop; open connections are dropped."""
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=30)

    async def _stop(self) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _fault_for(self, line: str) -> Fault | None:
        with self._lock:
            self._lines.append(line)
            for fault in self._faults:
                if not re.search(fault.match, line) or fault.times <= 0:
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                self._hits.append(line)
                return fault
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._connections.add(task)
        try:
            while await self._answer_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._connections.discard(task)

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path = head.split(b" ", 2)[:2]
        headers = _headers(head)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        line = f"{method.decode()} {path.decode()} {headers.get('range', '')}".strip()
        fault = self._fault_for(line) or Fault("")
        if fault.before is not None:
            await asyncio.to_thread(fault.before)
        if fault.is_reset:
            return False
        if fault.status is not None:
            writer.write(_error_answer(fault))
            await writer.drain()
            return True
        return await self._pass_on(head, body, fault, writer)

    async def _pass_on(self, head: bytes, body: bytes, fault: Fault, writer: asyncio.StreamWriter) -> bool:
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        try:
            upstream.write(_without_connection(head)[:-2] + b"Connection: close\r\n\r\n" + body)
            answer = _without_connection(await upstream_reader.readuntil(b"\r\n\r\n"))
            if fault.has_wrong_hash:
                answer = re.sub(rb"(?i)(x-goog-hash: crc32c=)....", rb"\1AAAA", answer)
            writer.write(answer)
            is_whole = await _copy_body(upstream_reader, writer, fault)
            headers = _headers(answer)
            return is_whole and ("content-length" in headers or "transfer-encoding" in headers)
        finally:
            upstream.transport.abort()


async def _copy_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: Fault) -> bool:
    # A slow body goes in small pieces, or the first of them would come as a burst.
    chunk_bytes = CHUNK_BYTES if fault.bytes_per_s is None else max(1, int(fault.bytes_per_s / 20))
    sent_bytes = 0
    while data := bytearray(await reader.read(chunk_bytes)):
        end = sent_bytes + len(data)
        if fault.cut_after_bytes is not None and end > fault.cut_after_bytes:
            writer.write(data[: fault.cut_after_bytes - sent_bytes])
            await writer.drain()
            await asyncio.sleep(0.02)  # so that the bytes leave before the reset overtakes them
            return False
        if fault.stall_after_bytes is not None and sent_bytes <= fault.stall_after_bytes < end:
            await asyncio.sleep(fault.stall_s)
        if fault.flipped_byte is not None and sent_bytes <= fault.flipped_byte < end:
            data[fault.flipped_byte - sent_bytes] ^= 1
        if fault.bytes_per_s is not None:
            await asyncio.sleep(len(data) / fault.bytes_per_s)
        writer.write(bytes(data))
        await writer.drain()
        sent_bytes = end
    return True


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin1").split("\r\n")[1:]
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}


def _without_connection(head: bytes) -> bytes:
    return re.sub(rb"(?im)^(connection|expect): .*\r\n", b"", head)


def _error_answer(fault: Fault) -> bytes:
    message = f"injected {fault.status}"
    body = json.dumps({"error": {"code": fault.status, "message": message, "errors": [{"message": message}]}}).encode()
    retry_after = "" if fault.retry_after_s is None else f"Retry-After: {fault.retry_after_s}\r\n"
    head = f"HTTP/1.1 {fault.status} Injected\r\nContent-Type: application/json\r\n{retry_after}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
