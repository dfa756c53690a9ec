"""The HTTP load generator. It streams completions and records when each token arrives.

It shares the cores with the server, so it has to be cheap: it writes requests as bytes and finds the events of an
answer by searching for their prefix. It parses only the JSON of the last event.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any, override

EVENT = b"data: {"
END = b"data: [DONE]"


@dataclass
class Answer:
    """The answer to one request; times are of `time.perf_counter`."""

    sent_s: float = 0.0
    event_s: list[float] = field(default_factory=list)  # arrival of each event with text
    usage: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """One request and the time to send it."""

    body: dict[str, Any]
    delay_s: float = 0.0  # after the start
    path: str = "/v1/completions"


def completion_body(model: str, prompt: list[int] | str, output_tokens: int) -> dict[str, Any]:
    """Return the body of a greedy, streamed completion with exactly this number of tokens."""
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }


class EventReader(asyncio.Protocol):
    """A protocol that sends one request and collects its events."""

    def __init__(self, request: bytes) -> None:
        self.answer = Answer()
        self.done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._request = request
        self._received = b""
        self._searched = 0

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.answer.sent_s = time.perf_counter()
        transport.write(self._request)

    @override
    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter()
        self._received += data
        while (found := self._received.find(EVENT, self._searched)) >= 0:
            self.answer.event_s.append(now_s)
            self._searched = found + len(EVENT)
        if self._received.find(END, self._searched) >= 0 and not self.done.done():
            last = self._received[self._searched - 1 :].split(b"\n", 1)[0]
            self.answer.usage = json.loads(last).get("usage") or {}
            self.done.set_result(self.answer)
            self._transport.close()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"the answer has no end: {self._received[-500:]!r}"))


async def connect(host: str, port: int, call: Call) -> EventReader:
    """Send one request on a new connection and return the reader of its answer."""
    request = _request_bytes(host, port, call)
    _, reader = await asyncio.get_running_loop().create_connection(lambda: EventReader(request), host, port)
    return reader


async def send(host: str, port: int, call: Call) -> Answer:
    """Send one request at its time and return its complete answer."""
    if call.delay_s:
        await asyncio.sleep(call.delay_s)
    return await (await connect(host, port, call)).done


async def send_all(host: str, port: int, calls: list[Call]) -> tuple[float, list[Answer]]:
    """Send every request at its time; return the start time and the answers in the order of `calls`."""
    started_s = time.perf_counter()
    return started_s, list(await asyncio.gather(*(send(host, port, call) for call in calls)))


def _request_bytes(host: str, port: int, call: Call) -> bytes:
    body = json.dumps(call.body).encode()
    head = {"Host": f"{host}:{port}", "Content-Type": "application/json", "Content-Length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    return f"POST {call.path} HTTP/1.1\r\n{lines}\r\n".encode() + body
