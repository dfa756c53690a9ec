"""Minutes of mixed load with aborts and reloads of the model: what grows with time is a leak."""

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
ADMIN_KEY = "sk-soak-admin"
SAMPLE_S = 0.5
SETTLE_S = 1.0
# Threads of pools are started on demand, up to the pools' sizes, and then stay; so is the heap's memory.
WARM_UP = 1 / 3
MAX_SLOPE = 2**20  # bytes per minute
# In fewer periods between two reloads a slope is noise; a model that is not freed still shows.
MIN_PERIODS = 5
MAX_GROWTH = 100 * 2**20  # about a quarter of what one load of the model takes

UNLOAD = (
    f"POST /admin/unload/{MODEL} HTTP/1.1\r\nHost: soak\r\nAuthorization: Bearer {ADMIN_KEY}\r\n"
    "Content-Length: 0\r\nConnection: close\r\n\r\n"
).encode()

type Memory = list[list[int]]  # samples of resident bytes, in periods that begin with a reload each


def mixed(scale: Scale) -> Iterator[Figure]:
    """Yield the figures of mixed load: growth between the end of its first third and its end."""
    row = f"{scale.mixed_s:g} s of mixed load with aborts and reloads"
    settings = {"max_concurrent_requests": 16, "admin_api_key": ADMIN_KEY}
    with ServiceProcess(module="scripts.soak.counted_service", **settings) as service:
        service.wait_until_ready()
        port = int(service.url.rsplit(":", 1)[1])
        process = psutil.Process(service.process.pid)
        warm_up_s = scale.mixed_s * WARM_UP
        asyncio.run(_load(port, warm_up_s, min(scale.reload_s, warm_up_s / 2), process))
        before = _counts(service, process)
        memory = asyncio.run(_load(port, scale.mixed_s - warm_up_s, scale.reload_s, process))
        after = _counts(service, process)
    for name, count in after.items():
        yield Figure(row, f"no growth of {name}", f"{before[name]}, then {count}", count <= before[name])
    yield Figure(row, "the model was loaded again", f"{len(memory) - 1} times", len(memory) > 1)
    yield _growth(row, memory, scale.reload_s)


def _growth(row: str, memory: Memory, period_s: float) -> Figure:
    """Return the figure of memory: a reload frees and takes much of it, so periods are compared by their medians."""
    medians = [statistics.median(period) for period in memory]
    if len(medians) < MIN_PERIODS:
        growth, bound = medians[-1] - medians[0], f"memory grows by < {MAX_GROWTH / 2**20:.0f} MiB in all"
        return Figure(row, bound, f"{growth / 2**20:.1f} MiB", growth < MAX_GROWTH)
    slope = statistics.linear_regression(range(len(medians)), medians).slope * 60 / period_s
    return Figure(row, "memory grows by < 1 MiB/min", f"{slope / 2**20:.2f} MiB/min", slope < MAX_SLOPE)


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


async def _load(port: int, seconds: float, reload_s: float, process: psutil.Process) -> Memory:
    """Return the samples of memory; those of a period that was cut short are left out."""
    end_s = time.monotonic() + seconds
    load = asyncio.gather(*(_client(port, random.Random(i), end_s) for i in range(NUM_CLIENTS)))
    memory: Memory = []
    while time.monotonic() + reload_s / 2 < end_s:
        unload = asyncio.create_task(ask(port, UNLOAD))
        samples: list[int] = []
        period_end_s = time.monotonic() + reload_s
        while time.monotonic() < min(period_end_s, end_s):
            samples.append(process.memory_info().rss)
            await asyncio.sleep(SAMPLE_S)
        assert (await unload).status == 200
        memory.append(samples)
    await load
    return memory


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
            completion(prompt=question * 2000, max_tokens=20, truncate_prompt_tokens=50),
            post("/v1/chat/completions", json.dumps(chat | {"stream": rng.random() < 0.5}).encode()),
            post("/v1/chat/completions", json.dumps(chat | {"response_format": schema}).encode()),
            post("/v1/chat/completions", json.dumps(chat | {"model": "other"}).encode()),
            post("/v1/chat/completions", b"{"),
            post("/nowhere", b"{}"),
        ]
    )
