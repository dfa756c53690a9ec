"""Latency under load, over HTTP: a late request, a shared prefix, and a mixed load."""

import asyncio
import time
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.contenders import HttpServer
from benchmarks.load import Answer, connect
from benchmarks.workload import Outcome, Wave

HOST = "127.0.0.1"
SETTLED_EVENTS = 3  # tokens of every running stream before the late request is sent


def measure_late(server: HttpServer, word_ids: list[int], wave: Wave, seed: int) -> dict[str, float]:
    """Measure a request alone, then another of the same length while the streams of a wave run.

    Returns:
        The times to the first token, alone and late, and the step time of the running streams meanwhile, in seconds.
    """
    prompts = wave.prompts(word_ids, seed)
    alone, *running = prompts
    late = alone[::-1]  # of the same length, and not in the prefix cache
    first_alone_s = server.run([alone], 2).first_token_s[0]
    first_late_s, step_s = asyncio.run(_late(server, running, late, wave.output_tokens))
    return {"alone_s": first_alone_s, "late_s": first_late_s, "step_s": step_s}


async def _late(
    server: HttpServer, running: list[list[int]], late: list[int], output_tokens: int
) -> tuple[float, float]:
    readers = [await connect(HOST, server.port, server.call(prompt, output_tokens)) for prompt in running]
    while any(len(reader.answer.event_s) < SETTLED_EVENTS for reader in readers):
        await asyncio.sleep(0.005)
    settled_s = time.perf_counter()
    await asyncio.sleep(0.3)  # long enough to observe the steps of the running streams
    late_reader = await connect(HOST, server.port, server.call(late, 2))
    answer = await late_reader.done
    assert not any(reader.done.done() for reader in readers), "a stream ended before the late request was answered"
    answers = [await reader.done for reader in readers]
    return answer.event_s[0] - answer.sent_s, _step_s(answers, settled_s, answer.sent_s)


def _step_s(answers: list[Answer], from_s: float, to_s: float) -> float:
    gaps = [
        later - earlier
        for answer in answers
        for earlier, later in zip(answer.event_s, answer.event_s[1:], strict=False)
        if from_s <= earlier and later <= to_s
    ]
    return float(np.median(gaps))


def measure_shared_prefix(
    server: HttpServer, word_ids: list[int], prefix_tokens: int, suffix_tokens: int, seed: int
) -> dict[str, float]:
    """Measure the time to the first token of two consecutive requests with a common prefix."""
    random = np.random.default_rng([seed, prefix_tokens])
    prefix = random.choice(word_ids, prefix_tokens).tolist()
    first, second = (
        server.run([prefix + random.choice(word_ids, suffix_tokens).tolist()], 2).first_token_s[0] for _ in range(2)
    )
    return {"first_s": first, "second_s": second}


def measure_mixed(server: HttpServer, word_ids: list[int], *, seed: int, is_quick: bool) -> dict[str, Any]:
    """Measure a mixed load: arrivals spread over seconds, varied lengths, half of the prompts with a shared prefix."""
    random = np.random.default_rng([seed, 7])
    num_requests, spread_s, scale = (8, 0.5, 8) if is_quick else (40, 8.0, 1)
    prefixes = random.choice(word_ids, (2, 192 // scale)).tolist()
    calls, outputs = [], []
    for i in range(num_requests):
        prompt_tokens = int(random.integers(32, 257)) // scale
        prompt = random.choice(word_ids, prompt_tokens).tolist()
        outputs.append(int(random.integers(16, 97)) // scale)
        if i % 2:
            prompt = prefixes[i // 2 % 2] + prompt
        calls.append(server.call(prompt, outputs[-1], delay_s=float(random.uniform(0, spread_s))))
    started_s, answers = server.send(calls)
    counts = [answer.usage["completion_tokens"] for answer in answers]
    assert counts == outputs, f"{counts} tokens came, {outputs} were asked for"
    outcome = Outcome.of_times(started_s, [a.sent_s for a in answers], [a.event_s[:-2] for a in answers])
    outcome.num_tokens = sum(counts)
    return {name: value for name, value in asdict(outcome).items() if not name.startswith("full")}
