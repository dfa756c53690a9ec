"""Requests that are too large in every way that a client can make one, beside ordinary ones."""

import asyncio
import contextlib
from collections.abc import Iterator

from scripts.soak.client import MODEL, Reply, connected, post, read
from scripts.soak.figures import Figure, Scale
from scripts.soak.observer import observed
from scripts.soak.sockets import MAX_HEALTH_S
from tests.process import running_service

ROW = "requests too large in every way"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: soak\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
PIECE = b"x" * 2**20
PATIENCE_S = 60.0


def _chat(messages: bytes) -> bytes:
    return post("/v1/chat/completions", b'{"model": "%s", "messages": %s}' % (MODEL.encode(), messages))


def attacks() -> Iterator[tuple[str, list[bytes]]]:
    """Yield the name and the bytes of each request, in pieces to be sent one after the other."""
    yield "a header of 64 MB", [HEAD + b"X-Long: ", *[PIECE] * 64, b"\r\n\r\n"]
    yield "100,000 headers", [HEAD, *[b"".join(b"X-%d: y\r\n" % i for i in range(1000))] * 100, b"\r\n"]
    yield "a body of 100 MB", [HEAD + b"Content-Length: %d\r\n\r\n" % (100 * 2**20), *[PIECE] * 100]
    chunk = b"%x\r\n%s\r\n" % (len(PIECE), PIECE)
    yield "a chunked body of 100 MB", [CHUNKED, *[chunk] * 100, b"0\r\n\r\n"]
    yield "1,000,000 chunks of one byte", [CHUNKED, *[b"1\r\n \r\n" * 10_000] * 100, b"0\r\n\r\n"]
    yield "JSON of 200,000 levels", [_chat(b"[" * 200_000 + b"]" * 200_000)]
    yield "150,000 empty messages", [_chat(b"[" + b",".join([b"{}"] * 150_000) + b"]")]
    ids = b'{"model": "%s", "prompt": [%s]}' % (MODEL.encode(), b",".join([b"1"] * 1_300_000))
    yield "1,300,000 token ids", [post("/v1/completions", ids)]


def malformed(_: Scale) -> Iterator[Figure]:
    """Yield the figures of all attacks, one after the other."""
    with running_service() as service:
        port = int(service.url.rsplit(":", 1)[1])
        with observed(port) as beside:
            found = {name: asyncio.run(_attack(port, pieces)) for name, pieces in attacks()}
        exit_code = service.process.poll()
    for name, outcome in found.items():
        yield Figure(name, "refused", outcome, outcome == "closed" or outcome.startswith("4"))
    p99_s = beside.health_p99_s()
    yield Figure(ROW, "health p99 < 100 ms", f"{p99_s * 1000:.0f} ms", p99_s < MAX_HEALTH_S, is_timing=True)
    yield Figure(ROW, "every other stream complete", f"{len(beside.ends)} are not", beside.ends == [])
    yield Figure(ROW, "the process lives", str(exit_code), exit_code is None)


async def _attack(port: int, pieces: list[bytes]) -> str:
    """Return the status of the answer, or `closed`."""
    reply = Reply()
    async with connected(port) as client:
        reading = asyncio.create_task(read(client, reply))
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                for piece in pieces:
                    await asyncio.get_running_loop().sock_sendall(client, piece)
        await asyncio.wait([reading], timeout=PATIENCE_S)
        if not reading.done():
            reading.cancel()
            return "never answered"
    return str(reply.status or "closed")
