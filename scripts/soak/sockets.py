"""Sockets that say nothing, end no body or read no answer, and clients that vanish."""

import asyncio
import contextlib
import time
from collections.abc import Iterator

import psutil

from scripts.soak.client import Reply, ask, completion, connected, metrics, read
from scripts.soak.figures import Figure, Scale
from scripts.soak.observer import observed
from service.server.connection import ConnectionLimits
from tests.process import running_service

HALF = b"POST /v1/completions HTTP/1.1\r\nHost: soak\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
# Answers of this many times 100 KB fill all buffers of a connection.
LARGE = b"GET /openapi.json HTTP/1.1\r\nHost: soak\r\n\r\n" * 100
TOKENS = "levserve_generation_tokens_total"
SETTLE_S = 2.0  # after which streams have begun, or sockets are open
LOOK_S = 1.0
SMALL_BUFFER = 4096
MAX_HEALTH_S = 0.1
MIN_SPEED = 0.9
MAX_GROWTH = 1.1
GONE_AFTER_S = ConnectionLimits().write_s + 5
FREE_AFTER_S = 0.1


def silent_and_deaf(scale: Scale) -> Iterator[Figure]:
    """Yield the figures of idle sockets, half-open bodies and deaf readers."""
    row = f"{scale.num_idle} idle sockets, {scale.num_half_open} half-open bodies, {scale.num_deaf} deaf readers"
    with running_service(max_concurrent_requests=1000) as service:
        port = int(service.url.rsplit(":", 1)[1])
        process = psutil.Process(service.process.pid)
        with observed(port) as user:
            before, rss_before = asyncio.run(tokens_per_s(port, scale.crowd_s)), process.memory_info().rss
            begin_s = time.monotonic()
            beside, gone_s, rss_beside = asyncio.run(_crowd(port, scale, process))
            after, rss_after = asyncio.run(tokens_per_s(port, scale.crowd_s)), process.memory_info().rss
    # The machine and the rhythm of the streams drift, so the crowd is compared with what lies around it.
    p99_s, speed = user.health_p99_s(begin_s), 2 * beside / (before + after)
    yield Figure(row, "health p99 < 100 ms", f"{p99_s * 1000:.0f} ms", p99_s < MAX_HEALTH_S, is_timing=True)
    figure = f"{speed:.0%} ({before:.0f}, {beside:.0f}, {after:.0f} tokens/s)"
    yield Figure(row, "others keep 90 % of their speed", figure, speed >= MIN_SPEED, is_timing=True)
    yield Figure(row, "every other stream complete", f"{len(user.ends)} are not", user.ends == [])
    figure = "not at all" if gone_s is None else f"{gone_s:.1f} s"
    yield Figure(row, "deaf sockets gone", figure, gone_s is not None)
    is_met = gone_s is not None and gone_s <= GONE_AFTER_S
    yield Figure(row, f"within {GONE_AFTER_S:g} s", figure, is_met, is_timing=True)
    figure = (
        ", ".join(f"{rss / 2**20:.0f}" for rss in (rss_before, rss_beside, rss_after)) + " MiB before, beside, after"
    )
    yield Figure(row, "they leave no memory behind", figure, rss_after <= rss_before * MAX_GROWTH)


async def tokens_per_s(port: int, seconds: float) -> float:
    """Return the speed of the service by its own count, after it has settled; no client's delay enters it."""
    await asyncio.sleep(SETTLE_S)
    before, begin_s = await metrics(port), time.monotonic()
    await asyncio.sleep(seconds)
    after, end_s = await metrics(port), time.monotonic()
    return (after[TOKENS] - before[TOKENS]) / (end_s - begin_s)


async def _crowd(port: int, scale: Scale, process: psutil.Process) -> tuple[float, float | None, int]:
    """Open all sockets and keep them for a while.

    Returns:
        The tokens per second of others meanwhile; after how many seconds the server has closed the deaf sockets, None
        if some are still open after twice the time allowed; the server's resident memory meanwhile, in bytes.
    """
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        deaf = set()
        for _ in range(scale.num_deaf):
            client = await stack.enter_async_context(connected(port, receive_buffer=SMALL_BUFFER))
            await loop.sock_sendall(client, LARGE)
            deaf.add(client.getsockname()[1])
        begin_s = time.monotonic()
        for _ in range(scale.num_half_open):
            client = await stack.enter_async_context(connected(port))
            await loop.sock_sendall(client, HALF)
        for _ in range(scale.num_idle):
            await stack.enter_async_context(connected(port))
        beside, rss = await tokens_per_s(port, scale.crowd_s), process.memory_info().rss
        # From here on, since reading the system's table of sockets takes a tenth of a second of a core.
        while _open_ports(process) & deaf:
            if time.monotonic() - begin_s > 2 * GONE_AFTER_S:
                return beside, None, rss
            await asyncio.sleep(LOOK_S)
        return beside, time.monotonic() - begin_s, rss


def _open_ports(process: psutil.Process) -> set[int]:
    """Return the ports of the clients of all sockets that a process holds."""
    return {connection.raddr.port for connection in process.net_connections("tcp") if connection.raddr}


def vanishing(scale: Scale) -> Iterator[Figure]:
    """Yield the figures of clients that vanish at once, half of them streaming."""
    row = f"{scale.num_vanishing} clients vanish, streaming and not"
    with running_service(max_concurrent_requests=2 * scale.num_vanishing) as service:
        port = int(service.url.rsplit(":", 1)[1])
        step_s, seconds, left = asyncio.run(_vanish(port, scale.num_vanishing))
    yield Figure(row, "no slot and no page in use after 5 s", left or "none", not left)
    bound = "after one step + 0.1 s"
    figure = f"{seconds:.2f} s with steps of {step_s:.2f} s"
    yield Figure(row, bound, figure, seconds <= step_s + FREE_AFTER_S, is_timing=True)


async def _vanish(port: int, num_clients: int) -> tuple[float, float, str]:
    replies = [Reply() for _ in range(num_clients)]
    async with contextlib.AsyncExitStack() as stack:
        reading = []
        for i, reply in enumerate(replies):
            client = await stack.enter_async_context(connected(port))
            request = completion(prompt=f"Count {i}", max_tokens=900, stream=i % 2 == 0)
            await asyncio.get_running_loop().sock_sendall(client, request)
            reading.append(asyncio.create_task(read(client, reply)))
        while (await metrics(port))["levserve_num_requests_running"] < 2 or not any(r.times_s[4:] for r in replies):
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        gaps = [b - a for r in replies for a, b in zip(r.times_s[:-1], r.times_s[1:], strict=True)]
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    begin_s, left = time.monotonic(), "?"
    while left and time.monotonic() - begin_s < 5:
        found = await metrics(port)
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        left = ", ".join(f"{name} {found[f'levserve_{name}']:g}" for name in names if found[f"levserve_{name}"])
    seconds = time.monotonic() - begin_s
    probe = await ask(port, completion(max_tokens=3))
    return max(gaps), seconds, left or ("" if probe.end == "complete" else f"the next request: {probe.end}")
