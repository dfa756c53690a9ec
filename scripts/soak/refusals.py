"""What a refusal costs when every place is taken: its processor time, with the body of the request unread."""

import asyncio
import contextlib
from collections.abc import Iterator

import psutil

from scripts.soak.client import ask, connected
from scripts.soak.figures import Figure, Scale, count
from tests.process import running_service

ROW = "requests beyond the places, each on a connection of its own"
NUM_PLACES = 16
MAX_CPU_S = 0.002
NUM_AT_ONCE = 8
# The bodies do not follow. Those that hold the places may be awaited for 30 s.
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: soak\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
)


def refusals(scale: Scale) -> Iterator[Figure]:
    """Yield the figures of refusals by a service that is idle but for them."""
    with running_service(max_concurrent_requests=NUM_PLACES) as service:
        port = int(service.url.rsplit(":", 1)[1])
        process = psutil.Process(service.process.pid)
        outcomes, cpu_s = asyncio.run(_refuse(port, scale.num_refusals, process))
    yield Figure(ROW, "each refused with 429", count(outcomes), set(outcomes) == {"429"})
    figure = f"{1000 * cpu_s / scale.num_refusals:.2f} ms of CPU each"
    yield Figure(ROW, "2 ms of CPU at most", figure, cpu_s / scale.num_refusals <= MAX_CPU_S, is_timing=True)


async def _refuse(port: int, num_refusals: int, process: psutil.Process) -> tuple[list[str], float]:
    """Return the statuses of all answers, and the seconds of CPU that the service has used for them."""
    outcomes: list[str] = []

    async def client(num_requests: int) -> None:
        for _ in range(num_requests):
            outcomes.append(str((await ask(port, HEAD)).status))

    async with contextlib.AsyncExitStack() as stack:
        for _ in range(NUM_PLACES):
            holder = await stack.enter_async_context(connected(port))
            await asyncio.get_running_loop().sock_sendall(holder, HEAD)
        while (await ask(port, HEAD, leave_after_s=1)).status != 429:
            pass
        before = process.cpu_times()
        await asyncio.gather(*(client(num_refusals // NUM_AT_ONCE) for _ in range(NUM_AT_ONCE)))
        after = process.cpu_times()
    return outcomes, after.user + after.system - before.user - before.system
