"""Bodies that are legal JSON and take the most work to read, and answers that take the most work to write."""

import asyncio
import contextlib
import statistics
from collections.abc import Iterator

from scripts.soak.client import ask
from scripts.soak.crowd import NUM_CLIENTS, chat_request, crowd
from scripts.soak.figures import Figure, Scale, count
from scripts.soak.observer import Observed, observed
from scripts.soak.sockets import MAX_HEALTH_S, MIN_SPEED, tokens_per_s
from tests.process import running_service

ROW = f"{NUM_CLIENTS} clients send the worst legal bodies"
NUM_LARGE = 8
LARGE_ROW = f"{NUM_LARGE} clients have answers of 800 tokens with 20 log-probabilities each"


def legal(scale: Scale) -> Iterator[Figure]:
    """Yield the figures of large bodies and of large answers."""
    with running_service(max_concurrent_requests=1000) as service:
        port = int(service.url.rsplit(":", 1)[1])
        # The machine and the rhythm of the streams drift, so crowds alternate with times without one.
        users, crowded, outcomes, alone, beside = [], Observed(), list[str](), list[float](), list[float]()
        for i in range(2 * scale.num_crowds + 1):
            speeds, crowds = (beside, crowd(port)) if i % 2 else (alone, contextlib.nullcontext(list[str]()))
            with observed(port) as user, crowds as statuses:
                speeds.append(asyncio.run(tokens_per_s(port, scale.crowd_s)))
            users.append(user)
            outcomes += statuses
            crowded.health += user.health if i % 2 else []
        with observed(port) as large:
            answers = asyncio.run(_large_answers(port))
    p99_s, speed = crowded.health_p99_s(), statistics.mean(beside) / statistics.mean(alone)
    yield Figure(ROW, "each answered, or refused with a 4xx", count(outcomes), set(outcomes) <= {"200", "400", "429"})
    yield Figure(ROW, "health p99 < 100 ms", f"{p99_s * 1000:.0f} ms", p99_s < MAX_HEALTH_S, is_timing=True)
    figure = f"{speed:.0%} ({_speeds(beside)} tokens/s between {_speeds(alone)})"
    yield Figure(ROW, "others keep 90 % of their speed", figure, speed >= MIN_SPEED, is_timing=True)
    ends = [end for user in (*users, large) for end in user.ends]
    yield Figure(ROW, "every other stream complete", f"{len(ends)} are not", ends == [])
    p99_s = large.health_p99_s()
    yield Figure(LARGE_ROW, "each complete", count(answers), set(answers) == {"complete"})
    yield Figure(LARGE_ROW, "health p99 < 100 ms", f"{p99_s * 1000:.0f} ms", p99_s < MAX_HEALTH_S, is_timing=True)


def _speeds(speeds: list[float]) -> str:
    return ", ".join(f"{speed:.0f}" for speed in speeds)


async def _large_answers(port: int) -> list[str]:
    request = chat_request(n=8, max_tokens=100, ignore_eos=True, logprobs=True, top_logprobs=20)
    return [reply.end for reply in await asyncio.gather(*(ask(port, request) for _ in range(NUM_LARGE)))]
