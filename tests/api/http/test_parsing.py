"""Long bodies are parsed one at a time, with rests between them for everybody else."""

import asyncio
import json

import anyio
import pytest

from service.api.http import receive
from service.api.http.receive import Parsing
from service.api.schema.completions import CompletionRequest
from service.errors import RequestError
from service.server.connection import Connection
from tests.api.scripted_engine import MODEL, Service
from tests.sockets import connected, served, wait_until

pytestmark = pytest.mark.anyio

LONG = json.dumps({"model": MODEL, "prompt": "a" * 100_000}).encode()


class Parser:
    """Stands for the parser: notes how many threads are in it at once."""

    def __init__(self):
        self.num_inside, self.most_inside, self.num_calls = 0, 0, 0

    def __call__(self, kind, content):
        self.num_inside += 1
        self.num_calls += 1
        self.most_inside = max(self.most_inside, self.num_inside)
        sum(range(300_000))  # some milliseconds of the interpreter
        self.num_inside -= 1
        return kind


@pytest.fixture
def parser(monkeypatch):
    parser = Parser()
    monkeypatch.setattr(receive, "parse", parser)
    return parser


async def test_one_body_is_parsed_at_a_time(parser):
    shared = Parsing()
    await asyncio.gather(*(shared.parse(CompletionRequest, LONG) for _ in range(5)))
    assert (parser.num_calls, parser.most_inside) == (5, 1)


async def test_the_next_body_waits_in_proportion_to_the_work(parser, monkeypatch):
    monkeypatch.setattr(receive, "RESTS", 1e6)
    shared = Parsing()
    await shared.parse(CompletionRequest, LONG)
    with anyio.move_on_after(0.2) as scope:
        await shared.parse(CompletionRequest, LONG)
    assert scope.cancelled_caught
    assert parser.num_calls == 1


async def test_a_refused_body_gives_its_turn_back():
    shared = Parsing()
    for _ in range(2):
        with pytest.raises(RequestError):
            await shared.parse(CompletionRequest, b"[" * 100_000)
    await shared.parse(CompletionRequest, LONG)


def test_who_leaves_while_waiting_for_a_turn_is_not_parsed(parser):
    service = Service()
    turn = service.app.state.context.parsing.turn
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(LONG)}\r\n"
    )
    with served(service.app, Connection) as server:
        asyncio.run_coroutine_threadsafe(turn.acquire_on_behalf_of(object()), server.loop).result()
        with connected(server) as client:
            client.sendall(head.encode() + b"\r\n" + LONG)
            wait_until(lambda: turn.statistics().tasks_waiting)
        wait_until(lambda: not turn.statistics().tasks_waiting)
    assert parser.num_calls == 0
