"""Minutes of mixed load with aborts: what grows with time is a leak."""

import asyncio
import json
import random
import signal
import statistics
import time
from collections.abc import Iterator

import psutil

from scripts.soak.client import MODEL, ask, completion, post
from scripts.soak.figures import Figure, Scale
from tests.process import ServiceProcess

NUM_CLIENTS = 24
SAMPLE_S = 0.5
SETTLE_S = 1.0
MAX_SLOPE = 2**20  # bytes per minute
# Threads of pools are started on demand, up to the pools' sizes, and then stay.
WARM_UP = 1 / 3


def mixed(scale: Scale) -> Iterator[Figure]:
    """Yield the figures of mixed load: growth between the end of its first third and its end."""
    row = f"{scale.mixed_s:g} s of mixed load with aborts"
    with ServiceProcess(module="scripts.soak.counted_service", max_concurrent_requests=16) as service:
        service.wait_until_ready()
        port = int(service.url.rsplit(":", 1)[1])
        process = psutil.Process(service.process.pid)
        asyncio.run(_load(port, scale.mixed_s * WARM_UP, process))
        before = _counts(service, process)
        rss = asyncio.run(_load(port, scale.mixed_s * (1 - WARM_UP), process))
        after = _counts(service, process)
    for name, count in after.items():
        yield Figure(row, f"no growth of {name}", f"{before[name]}, then {count}", count <= before[name])
    slope = 60 * statistics.linear_regression(*zip(*rss, strict=True)).slope
    yield Figure(row, "memory grows by < 1 MB/min", f"{slope / 2**20:.2f} MB/min", slope < MAX_SLOPE, is_timing=True)


def _counts(service: ServiceProcess, process: psutil.Process) -> dict[str, int]:
    """Return what a process holds once its connections are closed."""
    time.sleep(SETTLE_S)
    num_lines = len(service.log)
    process.send_signal(signal.SIGUSR1)
    end_s = time.monotonic() + 10
    while not (lines := [line for line in service.log[num_lines:] if line["message"] == "tasks"]):
        assert time.monotonic() < end_s
        time.sleep(0.01)
    return {"handles": process.num_fds(), "threads": process.num_threads(), "tasks": lines[0]["num_tasks"]}


async def _load(port: int, seconds: float, process: psutil.Process) -> list[tuple[float, int]]:
    """Return times in seconds with the bytes of resident memory."""
    rss: list[tuple[float, int]] = []
    end_s = time.monotonic() + seconds
    load = asyncio.gather(*(_client(port, random.Random(i), end_s) for i in range(NUM_CLIENTS)))
    while not load.done():
        rss.append((time.monotonic(), process.memory_info().rss))
        await asyncio.wait([load], timeout=SAMPLE_S)
    await load
    return rss


async def _client(port: int, rng: random.Random, end_s: float) -> None:
    while time.monotonic() < end_s:
        leave_after_s = rng.choice((None, None, rng.uniform(0, 0.5)))
        await ask(port, _request(rng), leave_after_s=leave_after_s)
        await asyncio.sleep(rng.uniform(0, 0.1))


def _request(rng: random.Random) -> bytes:
    """Return one of all kinds of requests, malformed ones among them."""
    question = f"What is {rng.randrange(10**6)}? " * rng.choice((1, 10, 40))
    chat = {"model": MODEL, "messages": [{"role": "user", "content": question}], "max_tokens": rng.choice((1, 20, 100))}
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "properties": {}}}}
    return rng.choice(
        [
            completion(prompt=question, max_tokens=rng.choice((1, 20, 100)), stream=rng.random() < 0.5),
            completion(prompt=question, max_tokens=20, logprobs=5, n=3),
            post("/v1/chat/completions", json.dumps(chat | {"stream": rng.random() < 0.5}).encode()),
            post("/v1/chat/completions", json.dumps(chat | {"response_format": schema}).encode()),
            post("/v1/chat/completions", json.dumps(chat | {"model": "other"}).encode()),
            post("/v1/chat/completions", b"{"),
            post("/nowhere", b"{}"),
        ]
    )
