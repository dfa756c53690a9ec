"""Clients that send the bodies that take the most work to read, in a process of the lowest priority.

They share this machine's processors with the service, which must not wait for them; their bodies are made before any is
sent. A client that is refused waits for as long as it is told to, as the official clients do; what those cost that do
not is the row `refusals`.

`python -m scripts.soak.crowd PORT` sends until its input ends, and prints how it was answered.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from scripts.soak.client import MODEL, ask, post
from scripts.soak.reporter import reporter

NUM_CLIENTS = 64
HI = [{"role": "user", "content": "hi"}]


@contextlib.contextmanager
def crowd(port: int) -> Iterator[list[str]]:
    """Have the clients send while the context is open; the statuses of their answers are complete after it."""
    statuses: list[str] = []
    with reporter("scripts.soak.crowd", port) as reports:
        yield statuses
    statuses += reports[0]


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
    return [chat_request(max_tokens=1, **chat) for chat in chats] + [
        post("/v1/completions", _encoded({"model": MODEL, "max_tokens": 1, "prompt": prompt})) for prompt in prompts
    ]


def chat_request(**fields: Any) -> bytes:
    """Return the bytes of a chat with these fields."""
    return post("/v1/chat/completions", _encoded({"model": MODEL, "messages": HI} | fields))


def _encoded(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


async def _send(port: int) -> list[str]:
    requests, statuses = bodies(), list[str]()

    async def client(number: int) -> None:
        for i in range(number, number + 10**6):
            reply = await ask(port, requests[i % len(requests)])
            statuses.append(str(reply.status))
            await asyncio.sleep(reply.retry_after_s)

    clients = [asyncio.create_task(client(i)) for i in range(NUM_CLIENTS)]
    print("sending", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in clients:
        task.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    return statuses


if __name__ == "__main__":
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    print(json.dumps(asyncio.run(_send(int(sys.argv[1])))))
