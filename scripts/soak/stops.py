"""SIGTERM at any moment, and devices that hang or die: every client gets an answer or learns why there is none."""

import asyncio
import random
import signal
import time
from collections.abc import Iterator

from scripts.soak.client import Reply, ask, completion
from scripts.soak.figures import Figure, Scale, count
from tests.process import ServiceProcess

NUM_STREAMS = 32
DRAIN_S = 2
EXIT_S = 1.5
WATCHDOG_S = 2
WATCHDOG_EXIT_S = 2
NUM_FAILING = 8
# The device fails once so many run at once, so they need as many slots.
FAILING = {
    "module": "tests.server.failing_service",
    "failing_num_sequences": NUM_FAILING,
    "max_num_seqs": NUM_FAILING,
}
TOLD = {"complete", "shutting_down", "engine_stopped", "engine_error"}
LONGEST_START_S, LONGEST_STREAM_S = 6.0, 2.0


def terminations(scale: Scale) -> Iterator[Figure]:
    """Yield the figures of SIGTERM at random moments, of which every second one is in the start."""
    row = f"SIGTERM under {NUM_STREAMS} streams, at {scale.num_terminations} moments, the start's included"
    rng = random.Random(19)
    codes, seconds, ends = [], [], []
    for i in range(scale.num_terminations):
        with ServiceProcess(drain_seconds=DRAIN_S, early_requests="wait", max_concurrent_requests=64) as service:
            if i % 2 == 0:
                service.wait_until_ready()
            moment_s = rng.uniform(0, LONGEST_STREAM_S if i % 2 == 0 else LONGEST_START_S)
            code, exit_s, found = asyncio.run(_terminate(service, moment_s))
        codes.append(str(code))
        seconds.append(exit_s)
        ends += found
    bound = f"exit code 0 within {DRAIN_S + EXIT_S} s"
    yield Figure(row, "exit code 0", count(codes), set(codes) == {"0"})
    is_met = max(seconds) <= DRAIN_S + EXIT_S
    yield Figure(row, bound, f"{max(seconds):.2f} s at most", is_met, is_timing=True)
    is_met = set(ends) <= {"complete", "shutting_down"}
    yield Figure(row, "each stream complete or ended by an error event", count(ends), is_met)


async def _terminate(service: ServiceProcess, moment_s: float) -> tuple[int, float, list[str]]:
    port = int(service.url.rsplit(":", 1)[1])
    requests = [completion(prompt=f"Count {i}", max_tokens=400) for i in range(NUM_STREAMS)]
    replies = [Reply() for _ in requests]
    asking = [asyncio.create_task(ask(port, request, reply=r)) for request, r in zip(requests, replies, strict=True)]
    await asyncio.sleep(moment_s)
    begin_s = time.monotonic()
    service.process.send_signal(signal.SIGTERM)
    exit_code, seconds = await _exit(service, begin_s)
    await asyncio.gather(*asking)
    return exit_code, seconds, [reply.end for reply in replies]


async def _exit(service: ServiceProcess, begin_s: float) -> tuple[int, float]:
    code = await asyncio.to_thread(service.process.wait, 60)
    return code, time.monotonic() - begin_s


def failures(scale: Scale) -> Iterator[Figure]:
    """Yield the figures of a device that dies, one that hangs, and of SIGTERM while one hangs."""
    for step in scale.failing_steps:
        row = f"a device that dies at step {step} under {NUM_FAILING} streams"
        yield from _failure(row, {}, step, nonzero=True)
    hangs = {"failing_hangs": "yes"}
    row = f"a step that hangs under {NUM_FAILING} streams, WATCHDOG_SECONDS={WATCHDOG_S}"
    yield from _failure(row, hangs | {"watchdog_seconds": WATCHDOG_S}, 12, nonzero=True)
    row = f"SIGTERM while the device hangs under {NUM_FAILING} streams, DRAIN_SECONDS={DRAIN_S}"
    yield from _failure(row, hangs | {"drain_seconds": DRAIN_S}, 12, nonzero=False)


def _failure(row: str, settings: dict[str, object], step: int, *, nonzero: bool) -> Iterator[Figure]:
    with ServiceProcess(**FAILING | {"failing_num_steps": step} | settings) as service:
        service.wait_until_ready()
        code, seconds, ends = asyncio.run(_fail(service, terminates=not nonzero))
    yield Figure(row, "exit code not 0" if nonzero else "exit code 0", str(code), (code != 0) == nonzero)
    yield Figure(row, "every stream learns why it ends", count(ends), set(ends) <= TOLD)
    limit_s = {True: WATCHDOG_S + WATCHDOG_EXIT_S, False: DRAIN_S + EXIT_S}[nonzero]
    yield Figure(row, f"ended within {limit_s:g} s", f"{seconds:.2f} s", seconds <= limit_s, is_timing=True)


async def _fail(service: ServiceProcess, *, terminates: bool) -> tuple[int, float, list[str]]:
    """Stream until the device fails; return the exit code, the seconds since its last token, and the streams' ends."""
    port = int(service.url.rsplit(":", 1)[1])
    replies = [Reply() for _ in range(NUM_FAILING)]
    requests = [completion(prompt=f"Count {i}", max_tokens=900) for i in range(NUM_FAILING)]
    asking = [asyncio.create_task(ask(port, request, reply=r)) for request, r in zip(requests, replies, strict=True)]
    exiting = asyncio.create_task(asyncio.to_thread(service.process.wait, 60))
    last_s = time.monotonic()
    while not exiting.done():
        tokens_s = max((time_s for r in replies if r.end == "cut" for time_s in r.times_s), default=0.0)
        last_s = max(last_s, tokens_s)
        if terminates and tokens_s and time.monotonic() - last_s > 1:
            service.process.send_signal(signal.SIGTERM)
            last_s, terminates = time.monotonic(), False
        await asyncio.wait([exiting], timeout=0.02)
    seconds = time.monotonic() - last_s
    await asyncio.gather(*asking)
    return exiting.result(), seconds, [reply.end for reply in replies]
