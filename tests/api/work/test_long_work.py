"""Long bodies are worked on one at a time, with rests between them for everybody else, and never delay short ones."""

import asyncio
import json

import anyio
import pytest

from service.api.http import request_queue
from service.api.http.request_queue import Caps
from service.api.work import long_work
from service.api.work.long_work import LongWork
from service.api.work.turns import ANYONE
from service.engine.request import FinishReason
from service.server.connection import Connection
from tests.api.http.test_caps import HEAD, UNSENT, Queueing, answer_to, request_of
from tests.api.scripted_engine import MODEL, Service, tokens
from tests.sockets import body_from, connected, served, wait_until

pytestmark = pytest.mark.anyio

LONG = json.dumps({"model": MODEL, "prompt": "a" * 100_000, "truncate_prompt_tokens": 9}).encode()


def sent(body, path="/v1/completions"):
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Work:
    """Work that takes a while; counts how often it is done, and in how many turns at once."""

    def __init__(self, shared, seconds=0.0):
        self.shared, self.seconds = shared, seconds
        self.num_inside, self.most_inside, self.num_calls = 0, 0, 0

    async def __call__(self):
        self.num_inside += 1
        self.num_calls += 1
        self.most_inside = max(self.most_inside, self.num_inside)
        await asyncio.sleep(0.01)
        self.num_inside -= 1
        self.shared.charge(self.seconds)


async def is_waiting(work):
    with anyio.move_on_after(0.2) as scope:
        await work
    return scope.cancelled_caught


async def test_one_body_is_worked_on_at_a_time():
    shared = LongWork(lambda: True)
    work = Work(shared)
    await asyncio.gather(*(shared.begin(work) for _ in range(3)))
    assert (work.num_calls, work.most_inside) == (3, 1)


async def test_the_next_body_waits_in_proportion_to_the_work_if_others_run(monkeypatch):
    monkeypatch.setattr(long_work, "RESTS", 1e6)
    is_busy = False
    shared = LongWork(lambda: is_busy)
    work = Work(shared, 0.01)
    for _ in range(3):
        await shared.begin(work)
    is_busy = True
    await shared.begin(work)
    assert await is_waiting(shared.begin(work))
    assert work.num_calls == 4


async def test_the_next_body_waits_for_further_work_on_earlier_ones_too(monkeypatch):
    monkeypatch.setattr(long_work, "RESTS", 1e6)
    shared = LongWork(lambda: True)
    work = Work(shared)
    await shared.begin(work)
    shared.charge(0.01)
    await shared.begin(work)
    assert shared.body_s > 1e3
    assert await is_waiting(shared.begin(work))
    assert work.num_calls == 2


async def test_work_that_fails_gives_its_turn_back():
    async def fails():
        raise ValueError("mine")

    shared = LongWork(lambda: False)
    for _ in range(2):
        with pytest.raises(ValueError, match="mine"):
            await shared.begin(fails)


def test_who_leaves_while_waiting_for_a_turn_is_not_parsed():
    service = Service()
    turn = service.fastapi.state.context.queue.long_work.turn
    with served(service.app, Connection) as server:
        asyncio.run_coroutine_threadsafe(turn.take(ANYONE), server.loop).result()
        with connected(server) as client:
            client.sendall(sent(LONG))
            wait_until(lambda: turn.num_waiting)
        wait_until(lambda: not turn.num_waiting)
    assert service.process.pid is None


def test_bodies_that_would_wait_for_too_long_are_refused_unread_and_short_ones_are_not(monkeypatch):
    monkeypatch.setattr(request_queue, "MAX_LONG_WORK_S", 1e-9)
    service = Queueing()
    service.may_begin.set()
    turn = service.fastapi.state.context.queue.long_work.turn
    with served(service.app, Connection) as server, connected(server) as first, connected(server) as short:
        first.sendall(sent(LONG))
        assert json.loads(body_from(first))["choices"][0]["text"] == "Hello"  # from here on the time of one is known
        held = asyncio.run_coroutine_threadsafe(turn.take(ANYONE), server.loop).result()
        first.sendall(sent(LONG))
        wait_until(lambda: turn.num_waiting)
        assert answer_to(server, UNSENT) == (429, "long_bodies_full")
        short.sendall(request_of())
        assert json.loads(body_from(short))["choices"][0]["text"] == "Hello"
        server.loop.call_soon_threadsafe(turn.give_back, held)
        assert json.loads(body_from(first))["choices"][0]["text"] == "Hello"


def test_a_chunked_body_that_is_short_is_not_long():
    service = Service([*tokens("Hello"), FinishReason.STOP], caps=Caps())
    turn = service.fastapi.state.context.queue.long_work.turn
    body = json.dumps({"model": MODEL, "prompt": "Once " * 1000, "truncate_prompt_tokens": 9}).encode()
    with served(service.app, Connection) as server, connected(server) as client:
        asyncio.run_coroutine_threadsafe(turn.take(ANYONE), server.loop).result()
        client.sendall(
            HEAD.format("Transfer-Encoding: chunked").encode() + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        )
        assert json.loads(body_from(client))["choices"][0]["text"] == "Hello"
