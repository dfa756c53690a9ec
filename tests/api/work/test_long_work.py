"""Long bodies are worked on one at a time, with rests between them for everybody else, and never delay short ones."""

import asyncio
import contextlib
import json
import os
import threading
from functools import partial

import anyio
import pytest

from service.api.http import receive, request_queue
from service.api.http.request_queue import Caps
from service.api.work import long_work
from service.api.work.long_work import LongWork
from service.engine.request import FinishReason
from service.server.connection import Connection
from service.start.niceness import LONG_TEXT_NICENESS, yield_to_steps
from tests.api.http.test_caps import HEAD, UNSENT, Queueing, answer_to, request_of
from tests.api.scripted_engine import MODEL, TOKENIZER, Service, tokens
from tests.sockets import body_from, connected, served, wait_until

pytestmark = pytest.mark.anyio

LONG = json.dumps({"model": MODEL, "prompt": "a" * 100_000, "truncate_prompt_tokens": 9}).encode()
MESSAGES = [{"role": "user", "content": "a" * 100_000}]
CHAT = json.dumps({"model": MODEL, "messages": MESSAGES, "truncate_prompt_tokens": 9}).encode()


def sent(body, path="/v1/completions"):
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Work:
    """Some milliseconds of the interpreter; notes how often it is done, and in how many threads at once."""

    def __init__(self):
        self.num_inside, self.most_inside, self.num_calls = 0, 0, 0

    def __call__(self, *_):
        self.num_inside += 1
        self.num_calls += 1
        self.most_inside = max(self.most_inside, self.num_inside)
        sum(range(300_000))
        self.num_inside -= 1


@pytest.fixture
def work():
    return Work()


async def test_one_body_is_worked_on_at_a_time(work):
    shared = LongWork(lambda: True)
    await asyncio.gather(*(shared.begin(work) for _ in range(3)), *(shared.go_on(work) for _ in range(3)))
    assert (work.num_calls, work.most_inside) == (6, 1)


async def test_the_next_body_waits_in_proportion_to_the_work_if_others_run(work, monkeypatch):
    monkeypatch.setattr(long_work, "RESTS", 1e6)
    is_busy = False
    shared = LongWork(lambda: is_busy)
    for _ in range(3):
        await shared.begin(work)
    is_busy = True
    await shared.begin(work)
    with anyio.move_on_after(0.2) as scope:
        await shared.begin(work)
    assert scope.cancelled_caught
    assert work.num_calls == 4


async def test_further_work_on_a_body_is_done_at_once_and_the_next_body_waits_for_it_too(work, monkeypatch):
    monkeypatch.setattr(long_work, "RESTS", 1e6)
    shared = LongWork(lambda: work.num_calls > 2)
    await shared.begin(lambda: None)
    await shared.go_on(work)
    await shared.go_on(work)
    before_s = shared.body_s
    await shared.begin(work)
    assert shared.body_s > 1e3 * (before_s + 1e-6)
    await shared.go_on(work)
    with anyio.move_on_after(0.2) as scope:
        await shared.begin(work)
    assert scope.cancelled_caught
    assert work.num_calls == 4


async def test_work_that_fails_gives_its_turn_back():
    def fails():
        raise ValueError("mine")

    shared = LongWork(lambda: False)
    for _ in range(2):
        with pytest.raises(ValueError, match="mine"):
            await shared.begin(fails)


def test_who_leaves_while_waiting_for_a_turn_is_not_parsed(monkeypatch, work):
    monkeypatch.setattr(receive, "parse", work)
    service = Service()
    turn = service.app.state.context.queue.long_work.turn
    with served(service.app, Connection) as server:
        asyncio.run_coroutine_threadsafe(turn.acquire_on_behalf_of(object()), server.loop).result()
        with connected(server) as client:
            client.sendall(sent(LONG))
            wait_until(lambda: turn.statistics().tasks_waiting)
        wait_until(lambda: not turn.statistics().tasks_waiting)
    assert work.num_calls == 0


def test_bodies_that_would_wait_for_too_long_are_refused_unread_and_short_ones_are_not(monkeypatch):
    monkeypatch.setattr(request_queue, "MAX_LONG_WORK_S", 1e-9)
    service = Queueing()
    service.may_begin.set()
    turn = service.app.state.context.queue.long_work.turn
    with served(service.app, Connection) as server, connected(server) as first, connected(server) as short:
        first.sendall(sent(LONG))
        assert json.loads(body_from(first))["choices"][0]["text"] == "Hello"  # from here on the time of one is known
        held = object()
        asyncio.run_coroutine_threadsafe(turn.acquire_on_behalf_of(held), server.loop).result()
        first.sendall(sent(LONG))
        wait_until(lambda: turn.statistics().tasks_waiting)
        assert answer_to(server, UNSENT) == (429, "long_bodies_full")
        short.sendall(request_of())
        assert json.loads(body_from(short))["choices"][0]["text"] == "Hello"
        server.loop.call_soon_threadsafe(turn.release_on_behalf_of, held)
        assert json.loads(body_from(first))["choices"][0]["text"] == "Hello"


class SlowTokenizer:
    """A tokenizer that takes as long for long texts as a test wants, and notes its thread's niceness for each text."""

    def __init__(self):
        self.num_begun, self.may_end, self.niceness = 0, threading.Event(), {}

    def __getattr__(self, name):
        return getattr(TOKENIZER, name)

    def encode(self, text, **options):
        is_long = len(text) > 10_000
        self.niceness[is_long] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        self.num_begun += is_long
        if is_long:
            self.may_end.wait()
        return TOKENIZER.encode(text[-20:], **options)


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", LONG), ("/v1/chat/completions", CHAT)], ids=["completion", "chat"]
)
def test_short_requests_do_not_wait_for_long_texts_which_yield_to_steps(path, body):
    slow = SlowTokenizer()
    nicer = partial(yield_to_steps, LONG_TEXT_NICENESS)
    service = Service([*tokens("Hello"), FinishReason.STOP], model={"tokenizer": slow}, yield_to_steps=nicer)
    chat = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}).encode()
    try:
        with served(service.app, Connection) as server, contextlib.ExitStack() as stack:
            clients = [stack.enter_context(connected(server)) for _ in range(6)]
            for client in clients:
                client.sendall(sent(body, path))
            wait_until(lambda: slow.num_begun == 2)
            with connected(server) as short:
                short.sendall(sent(chat, "/v1/chat/completions"))
                assert json.loads(body_from(short))["choices"][0]["message"]["content"] == "Hello"
            assert slow.num_begun == 2
            slow.may_end.set()
            for client in clients:
                assert json.loads(body_from(client))["choices"][0]
    finally:
        slow.may_end.set()
    assert slow.niceness[True] > slow.niceness[False]


async def test_work_in_a_long_bodys_thread_raises_what_it_raises(monkeypatch):
    class Failing(SlowTokenizer):
        def encode(self, text, **options):
            raise ZeroDivisionError

    async with Service(model={"tokenizer": Failing()}).client() as client:
        response = await client.post("/v1/completions", content=LONG, headers={"content-type": "application/json"})
    assert response.status_code == 500
    assert "ZeroDivisionError" not in response.text


def test_a_chunked_body_that_is_short_is_not_long():
    service = Service([*tokens("Hello"), FinishReason.STOP], caps=Caps())
    turn = service.app.state.context.queue.long_work.turn
    body = json.dumps({"model": MODEL, "prompt": "Once " * 1000, "truncate_prompt_tokens": 9}).encode()
    with served(service.app, Connection) as server, connected(server) as client:
        asyncio.run_coroutine_threadsafe(turn.acquire_on_behalf_of(object()), server.loop).result()
        client.sendall(
            HEAD.format("Transfer-Encoding: chunked").encode() + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        )
        assert json.loads(body_from(client))["choices"][0]["text"] == "Hello"
