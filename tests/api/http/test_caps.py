"""Caps on what waits, at the level of a socket: what goes beyond is refused with its body unread, and says why."""

import asyncio
import json
import threading
import time

import pytest

from service.api.http.request_queue import Caps, RequestQueue
from service.engine.request import FinishReason
from service.server.connection import Connection
from tests.api.scripted_engine import MODEL, ScriptedStream, Service, tokens
from tests.sockets import body_from, connected, read_to_end, refusal, served, wait_until

HEAD = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n{}\r\n\r\n"
UNSENT = HEAD.format("Content-Length: 4000000").encode()  # a head whose body does not follow


def request_of(prompt="Once", **fields):
    body = json.dumps({"model": MODEL, "prompt": prompt} | fields).encode()
    return HEAD.format(f"Content-Length: {len(body)}").encode() + body


class SlotStream(ScriptedStream):
    """A stream that begins when a test allows it."""

    def __init__(self, request, script, may_begin):
        super().__init__(request, script, 0)
        self._may_begin = may_begin

    async def __aiter__(self):
        while not self._may_begin.is_set():
            await asyncio.sleep(0.005)
        async for event in super().__aiter__():
            yield event


class Queueing(Service):
    """A service whose sequences begin when a test allows it."""

    def __init__(self, **caps):
        super().__init__([*tokens("Hello"), FinishReason.STOP], caps=Caps(**caps))
        self.may_begin = threading.Event()
        self.engine.submit = self._submit

    def _submit(self, request):
        self.engine.streams.append(SlotStream(request, self.engine.script, self.may_begin))
        return self.engine.streams[-1]


def answer_to(server, request):
    with connected(server) as client:
        client.sendall(request)
        received = read_to_end(client)
    head = received.partition(b"\r\n\r\n")[0].lower()
    assert 1 <= int(head.partition(b"retry-after: ")[2].split()[0]) <= 60
    status, error = refusal(received)
    return status, error["code"]


def refusals(service, code):
    return f'levserve_request_refusals_total{{reason="{code}"}} 1.0' in service.metrics.exposition().decode()


@pytest.mark.parametrize(
    ("caps", "code"),
    [
        ({"max_queue_size": 1}, "queue_full"),
        ({"max_queued_tokens": 5}, "queued_tokens_full"),
        ({"max_open_body_bytes": 200}, "body_bytes_full"),
    ],
)
def test_what_waits_is_capped_and_a_place_that_is_free_again_is_given(caps, code):
    service = Queueing(**caps)
    with served(service.app, Connection) as server, connected(server) as first:
        first.sendall(request_of("Once upon a time"))
        wait_until(lambda: service.engine.streams)
        assert answer_to(server, UNSENT) == (429, code)
        assert refusals(service, code)
        service.may_begin.set()
        assert json.loads(body_from(first))["choices"][0]["text"] == "Hello"
        first.sendall(request_of())
        assert json.loads(body_from(first))["choices"][0]["text"] == "Hello"


def test_a_body_without_a_length_counts_as_the_largest():
    service = Queueing(max_open_body_bytes=4 * 1024 * 1024 + 10)
    with served(service.app, Connection) as server, connected(server) as first:
        first.sendall(request_of())
        wait_until(lambda: service.engine.streams)
        assert answer_to(server, HEAD.format("Transfer-Encoding: chunked").encode()) == (429, "body_bytes_full")
        service.may_begin.set()


def test_what_free_slots_take_does_not_wait_until_it_has_waited_long():
    service = Queueing(max_queue_size=0, num_slots=lambda: 2)
    with served(service.app, Connection) as server, connected(server) as first, connected(server) as second:
        first.sendall(request_of())
        wait_until(lambda: len(service.engine.streams) == 1)
        second.sendall(request_of())
        wait_until(lambda: len(service.engine.streams) == 2)
        assert answer_to(server, UNSENT) == (429, "queue_full")
        second.close()
        wait_until(lambda: service.engine.last.is_aborted)
        time.sleep(1.1)  # the first still waits although there are free slots: it lacks memory
        assert answer_to(server, UNSENT) == (429, "queue_full")
        service.may_begin.set()


def test_a_prompt_that_would_wait_alone_may_be_of_any_length_and_one_behind_it_may_not():
    service = Queueing(max_queued_tokens=100)
    with served(service.app, Connection) as server, connected(server) as first, connected(server) as second:
        second.sendall(request_of("b" * 150)[:-1])  # it had its place before there was anything to count
        wait_until(lambda: server.server_state.tasks)
        first.sendall(request_of("once " * 18))
        wait_until(lambda: service.engine.streams)
        second.sendall(b"}")
        assert json.loads(body_from(second))["error"]["code"] == "queued_tokens_full"
        service.may_begin.set()
        assert json.loads(body_from(first))["choices"][0]["text"] == "Hello"


def test_a_refusal_reads_no_body():
    service = Queueing(max_queue_size=40, max_queued_tokens=10_000)
    messages = []

    async def refused():
        async def send(message):
            messages.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b""}
        await service.app(scope, None, send)  # no body can be read

    async def main():
        async with service.client() as client:
            body = {"model": MODEL, "prompt": "Once"}
            held = [asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(40)]
            while len(service.engine.streams) < 40:
                await asyncio.sleep(0.01)
            await refused()
            service.may_begin.set()
            assert {answer.status_code for answer in await asyncio.gather(*held)} == {200}

    asyncio.run(main())
    assert {message["status"] for message in messages if "status" in message} == {429}


class Looks(list):
    """Clocks that count how often somebody looks at them."""

    num = 0

    def __bool__(self):
        Looks.num += 1
        return False


@pytest.mark.parametrize(
    ("caps", "num_looks"), [({}, 0), ({"max_queue_size": 50}, 2), ({"max_queued_tokens": 50}, 4)], ids=str
)
def test_a_request_looks_at_others_only_if_a_cap_on_what_waits_asks_for_it(caps, num_looks):
    queue = RequestQueue(Caps(max_requests=100, **caps))
    for _ in range(40):
        queue.enter(10, Looks())
    Looks.num = 0
    place = queue.enter(10, [])
    queue.add_prompts(place, 1)
    queue.leave(place)
    assert Looks.num <= 40 * num_looks
    assert (Looks.num == 0) == (num_looks == 0)
