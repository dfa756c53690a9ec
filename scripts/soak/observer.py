"""An ordinary user of the service in a process of its own, so that the load of a soak does not delay its clock.

`python -m scripts.soak.observer PORT` streams and asks for /health/live until its input ends, and prints its report.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from scripts.soak.client import LOOPBACK, ask, completion
from scripts.soak.figures import percentile
from scripts.soak.reporter import reporter

NUM_STREAMS = 8
HEALTH_EVERY_S = 0.02
HEALTH = b"GET /health/live HTTP/1.1\r\nHost: soak\r\n\r\n"
TOKENS = 100


@dataclass
class Observed:
    """What a user has seen."""

    health: list[tuple[float, float]] = field(default_factory=list)  # when asked, by `time.monotonic`, and for how long
    num_streams: int = 0
    ends: list[str] = field(default_factory=list)  # of streams that are not complete

    def health_p99_s(self, since_s: float = 0.0) -> float:
        """Return for how long 99 % of the health checks that began since a moment took at most."""
        return percentile((seconds for begin_s, seconds in self.health if begin_s >= since_s), 99)


@contextlib.contextmanager
def observed(port: int) -> Iterator[Observed]:
    """Observe the service while the context is open; the result is complete after it."""
    result = Observed()
    with reporter("scripts.soak.observer", port) as reports:
        yield result
    vars(result).update(reports[0])


async def _watch_health(port: int, result: Observed) -> None:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    with contextlib.closing(writer):
        while True:
            begin_s = time.monotonic()
            writer.write(HEALTH)
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].split(b"\r\n", 1)[0]
            await reader.readexactly(int(length))
            result.health.append((begin_s, round(time.monotonic() - begin_s, 5)))
            await asyncio.sleep(HEALTH_EVERY_S)


async def _stream(port: int, number: int, result: Observed, is_over: asyncio.Event) -> None:
    while not is_over.is_set():
        reply = await ask(port, completion(prompt=f"Count {number}", max_tokens=TOKENS))
        result.num_streams += 1
        if reply.status != 200 or reply.end != "complete":
            result.ends.append(f"{reply.status} {reply.end}")


async def _observe(port: int) -> Observed:
    result, is_over = Observed(), asyncio.Event()
    health = asyncio.create_task(_watch_health(port, result))
    streams = [asyncio.create_task(_stream(port, i, result, is_over)) for i in range(NUM_STREAMS)]
    print("observing", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    is_over.set()
    await asyncio.gather(*streams)
    health.cancel()
    if await asyncio.gather(health, return_exceptions=True) and not health.cancelled():
        result.ends.append(f"health: {health.exception()!r}")
    return result


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(_observe(int(sys.argv[1]))))))
