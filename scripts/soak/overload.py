"""Ten times as many clients as places for requests, with bodies of all sizes; a third of the clients leaves early."""

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path

import psutil

from scripts.soak.client import MODEL, Reply, ask, post
from scripts.soak.figures import Figure, Scale, count
from tests.process import running_service

ROW = "10x overload, bodies of 100 B to 4 MB, a third of the clients leaves"
ANSWERS = Path(__file__).parents[2] / "tests" / "demo_answers.json"
NUM_PLACES = 16
OVERLOAD = 10
SIZES = (100, 100, 1000, 1000, 10_000, 100_000, 1_000_000, 4_000_000)
PAUSE_S = 0.05
EXPECTED = ("right", "left", "429", "503")
SAMPLE_S = 0.25
MAX_GROWTH = 0.05


def overload(scale: Scale) -> Iterator[Figure]:
    """Yield the figures of an overload."""
    with running_service(max_concurrent_requests=NUM_PLACES) as service:
        port = int(service.url.rsplit(":", 1)[1])
        process = psutil.Process(service.process.pid)
        outcomes, rss = asyncio.run(_load(port, scale.overload_s, process))
    bad = [outcome for outcome in outcomes if not outcome.startswith(EXPECTED)]
    yield Figure(ROW, "each answer right, the others 429 or 503", count(outcomes), not bad and "right" in outcomes)
    third = len(rss) // 3
    warm, last = max(rss[third : 2 * third]), max(rss[2 * third :])
    growth = f"{warm / 2**20:.0f} MiB, then {last / 2**20:.0f} MiB"
    yield Figure(ROW, f"memory grows by {MAX_GROWTH:.0%} at most", growth, last <= warm * (1 + MAX_GROWTH))


async def _load(port: int, seconds: float, process: psutil.Process) -> tuple[list[str], list[int]]:
    outcomes: list[str] = []
    rss: list[int] = []
    end_s = asyncio.get_running_loop().time() + seconds
    pairs = json.loads(ANSWERS.read_text())
    clients = [_client(port, random.Random(i), pairs, end_s, outcomes) for i in range(OVERLOAD * NUM_PLACES)]
    load = asyncio.gather(*clients)
    while not load.done():
        rss.append(process.memory_info().rss)
        await asyncio.wait([load], timeout=SAMPLE_S)
    await load
    return outcomes, rss


async def _client(
    port: int, rng: random.Random, pairs: list[dict[str, str]], end_s: float, outcomes: list[str]
) -> None:
    loop = asyncio.get_running_loop()
    leaves = rng.random() < 1 / 3
    while loop.time() < end_s:
        pair = rng.choice(pairs)
        messages = [{"role": "user", "content": pair["question"]}]
        body = json.dumps({"model": MODEL, "messages": messages, "temperature": 0, "stream": rng.random() < 0.5})
        padded = body.encode().ljust(rng.choice(SIZES))
        leave_after_s = rng.uniform(0, 0.5) if leaves else None
        reply = await ask(port, post("/v1/chat/completions", padded), leave_after_s=leave_after_s)
        outcomes.append(_outcome(reply, pair["answer"], leaves=leaves))
        await asyncio.sleep(PAUSE_S)


def _outcome(reply: Reply, answer: str, *, leaves: bool) -> str:
    if leaves and not reply.is_whole:
        return "left"
    if reply.status != 200 or reply.end != "complete":
        return f"{reply.status or 'no answer'} {reply.end}"
    return "right" if reply.text() == answer else "wrong"
