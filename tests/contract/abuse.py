"""Many mixed requests to a service, of which a third is cut off, and what it must not lose by them."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence

import httpx
import psutil

from tests.process import ServiceProcess

CLIENTS = 12
SETTLE_S = 60
MORE_FILES = 4  # of a second process that decodes

type Kind = Callable[[httpx.AsyncClient, random.Random], Awaitable[None]]


def gauges(service: ServiceProcess) -> dict[str, float]:
    """Return how many requests run and wait, and the shares of pages and of places for rows that sequences have."""
    lines = httpx.get(f"{service.url}/metrics").text.splitlines()
    kinds = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "mm_cache_usage_perc")
    names = tuple(f"levserve_{kind}{{" for kind in kinds)
    found = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith(names)}
    assert len(found) == len(kinds), found
    return found


def held(service: ServiceProcess) -> tuple[int, int]:
    """Return the numbers of open files and of child processes."""
    process = psutil.Process(service.process.pid)
    return process.num_fds(), len(process.children(recursive=True))


async def settled(is_settled: Callable[[], bool]) -> None:
    """Wait until it is, or for a minute."""
    give_up_at = time.monotonic() + SETTLE_S
    while not is_settled() and time.monotonic() < give_up_at:
        await asyncio.sleep(0.2)


def cut_off_of(whole: Kind) -> Kind:
    """Return a request whose client leaves while it is worked on."""

    async def cut_off(client: httpx.AsyncClient, chance: random.Random) -> None:
        asking = asyncio.ensure_future(whole(client, chance))
        await asyncio.wait([asking], timeout=chance.random() ** 2)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    return cut_off


def cut_off_in_upload(path: str, media_type: str, begin: bytes) -> Kind:
    """Return a request whose client leaves while it sends the body, after its beginning."""

    async def cut_off(client: httpx.AsyncClient, chance: random.Random) -> None:
        head = (f"POST {path} HTTP/1.1", "Host: x", f"Content-Type: {media_type}", "Content-Length: 99999", "", "")
        _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        writer.write("\r\n".join(head).encode() + begin)
        await writer.drain()
        await asyncio.sleep(chance.random() / 20)
        writer.close()

    return cut_off


async def check_nothing_is_lost(
    service: ServiceProcess,
    path: str,
    kinds: Sequence[Kind],
    *,
    num_requests: int,
    seed: int,
    warm_up: Callable[[httpx.AsyncClient], Awaitable[str]],
) -> None:
    """Send requests of several kinds, and check that nothing answers 5xx and that none leaves anything behind.

    Args:
        service: the service.
        path: the route whose answers are counted.
        kinds: what the requests are chosen from.
        num_requests: how many.
        seed: of the choice among the kinds.
        warm_up: starts what requests need, and returns an answer that must be the same before and after.
    """
    chance = random.Random(seed)
    todo = [chance.choice(kinds) for _ in range(num_requests)]
    async with httpx.AsyncClient(base_url=service.url, timeout=600) as client:
        expected = await warm_up(client)
        before = held(service)

        async def work() -> None:
            while todo:
                await todo.pop()(client, random.Random(len(todo)))

        await asyncio.gather(*(work() for _ in range(CLIENTS)))
        await settled(lambda: not any(gauges(service).values()))
        assert not any(gauges(service).values())
        assert await warm_up(client) == expected
        statuses = {
            line.partition('status="')[2][:3]
            for line in (await client.get("/metrics")).text.splitlines()
            if line.startswith(f'levserve_http_responses_total{{route="{path}"')
        }
    assert not {status for status in statuses if status.startswith("5")}, statuses
    most = (before[0] + MORE_FILES, before[1] + 1)
    # A process that is killed with its request takes a moment to end.
    await settled(lambda: all(now <= limit for now, limit in zip(held(service), most, strict=True)))
    num_files, num_processes = held(service)
    assert num_files <= most[0]
    assert num_processes <= most[1]
