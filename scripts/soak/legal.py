"""Bodies that are legal JSON and take the most work to read, and answers that take the most work to write."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from scripts.soak.client import MODEL, ask, post
from scripts.soak.figures import Figure, Scale, count
from scripts.soak.observer import observed
from scripts.soak.sockets import MAX_HEALTH_S, MIN_SPEED, tokens_per_s
from tests.process import running_service

NUM_CLIENTS = 64
ROW = f"{NUM_CLIENTS} clients send the worst legal bodies"
NUM_LARGE = 8
LARGE_ROW = f"{NUM_LARGE} clients have answers of 800 tokens with 20 log-probabilities each"
HI = [{"role": "user", "content": "hi"}]


def bodies() -> list[bytes]:
    """Return requests that fit into MAX_BODY_BYTES and are refused, if at all, only by what they say."""
    chats: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": ""}] * 16_000},
        {"messages": [{"role": "user", "content": ""}] * 40_000},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 16_000}]},
        {"messages": [{"role": "user", "content": "a " * 1_900_000}]},
        {"allowed_token_ids": [1] * 262_000},
        {"metadata": {str(i): "" for i in range(300_000)}},
        {"tools": [[]] * 1_000_000},
    ]
    prompts: list[Any] = ["a " * 1_900_000, [1] * 1_300_000, ["😀" * 1_000] * 64]
    return [_chat(max_tokens=1, **chat) for chat in chats] + [
        post("/v1/completions", _encoded({"model": MODEL, "max_tokens": 1, "prompt": prompt})) for prompt in prompts
    ]


def _chat(**fields: Any) -> bytes:
    return post("/v1/chat/completions", _encoded({"model": MODEL, "messages": HI} | fields))


def _encoded(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def legal(scale: Scale) -> Iterator[Figure]:
    """Yield the figures of large bodies and of large answers."""
    with running_service(max_concurrent_requests=1000) as service:
        port = int(service.url.rsplit(":", 1)[1])
        with observed(port) as user:
            before = asyncio.run(tokens_per_s(port, scale.crowd_s))
        with observed(port) as crowded:
            beside, outcomes = asyncio.run(_beside(port, scale.crowd_s))
        with observed(port) as later:
            after = asyncio.run(tokens_per_s(port, scale.crowd_s))
        with observed(port) as large:
            answers = asyncio.run(_large_answers(port))
    p99_s, speed = crowded.health_p99_s(), 2 * beside / (before + after)
    yield Figure(ROW, "each answered, or refused with a 4xx", count(outcomes), set(outcomes) <= {"200", "400", "429"})
    yield Figure(ROW, "health p99 < 100 ms", f"{p99_s * 1000:.0f} ms", p99_s < MAX_HEALTH_S, is_timing=True)
    figure = f"{speed:.0%} ({before:.0f}, {beside:.0f}, {after:.0f} tokens/s)"
    yield Figure(ROW, "others keep 90 % of their speed", figure, speed >= MIN_SPEED, is_timing=True)
    ends = user.ends + crowded.ends + later.ends + large.ends
    yield Figure(ROW, "every other stream complete", f"{len(ends)} are not", ends == [])
    p99_s = large.health_p99_s()
    yield Figure(LARGE_ROW, "each complete", count(answers), set(answers) == {"complete"})
    yield Figure(LARGE_ROW, "health p99 < 100 ms", f"{p99_s * 1000:.0f} ms", p99_s < MAX_HEALTH_S, is_timing=True)


async def _beside(port: int, seconds: float) -> tuple[float, list[str]]:
    """Return the tokens per second of others while the clients send their bodies, and how those were answered."""
    outcomes: list[str] = []
    requests = bodies()

    async def client(number: int) -> None:
        for i in range(number, number + 10**6):
            reply = await ask(port, requests[i % len(requests)])
            outcomes.append(str(reply.status))

    clients = [asyncio.create_task(client(i)) for i in range(NUM_CLIENTS)]
    speed = await tokens_per_s(port, seconds)
    for task in clients:
        task.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    return speed, outcomes


async def _large_answers(port: int) -> list[str]:
    request = _chat(n=8, max_tokens=100, ignore_eos=True, logprobs=True, top_logprobs=20)
    return [reply.end for reply in await asyncio.gather(*(ask(port, request) for _ in range(NUM_LARGE)))]
