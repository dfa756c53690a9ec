"""A request without a place is refused at once, its body unread; a client that is gone gives its place back."""

import json
import threading
import time

import pytest

from service.api.http.request_queue import Caps
from service.engine.request import FinishReason
from service.server.connection import Connection
from tests.api.scripted_engine import MODEL, TOKENIZER, Service, tokens
from tests.sockets import body_from, connected, read_to_end, refusal, served, wait_until

HEAD = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
BODY = json.dumps({"model": MODEL, "prompt": "Once"}).encode()
REQUEST = HEAD.format(len(BODY)).encode() + BODY


@pytest.fixture
def service():
    return Service([*tokens("Hello"), FinishReason.STOP], caps=Caps(max_requests=2))


@pytest.fixture
def server(service):
    with served(service.app, Connection) as server:
        yield server


def test_a_place_is_taken_before_the_body_is_read(server):
    with connected(server) as first, connected(server) as second, connected(server) as third:
        for client in (first, second):
            client.sendall(REQUEST[:-1])
        wait_until(lambda: len(server.server_state.tasks) == 2)
        third.sendall(HEAD.format(4_000_000).encode())
        status, error = refusal(read_to_end(third))
        assert (status, error["code"]) == (429, "server_overloaded")
        first.sendall(REQUEST[-1:])
        assert json.loads(body_from(first))["choices"][0]["text"] == "Hello"
        with connected(server) as fourth:
            fourth.sendall(REQUEST)
            assert json.loads(body_from(fourth))["choices"][0]["text"] == "Hello"


def test_the_time_to_wait_follows_from_the_speed(server):
    with connected(server) as first, connected(server) as second:
        for client in (first, second):
            client.sendall(REQUEST)
            body_from(client)
            client.sendall(REQUEST[:-1])
        wait_until(lambda: len(server.server_state.tasks) == 2)
        time.sleep(1)  # two requests in a second
        waits = []
        for _ in range(12):
            with connected(server) as client:
                client.sendall(REQUEST)
                head = read_to_end(client).partition(b"\r\n\r\n")[0].lower()
                waits.append(int(head.partition(b"retry-after: ")[2].split()[0]))
    assert waits == sorted(waits)
    assert waits[0] < waits[-1] <= 60


@pytest.mark.parametrize("num_bytes", [0, len(BODY) // 2], ids=["before the body", "in the body"])
def test_a_client_that_leaves_before_its_body_is_there_gives_its_place_back(server, num_bytes):
    for _ in range(4):
        with connected(server) as client:
            client.sendall(REQUEST[: len(REQUEST) - len(BODY) + num_bytes])
            wait_until(lambda: server.server_state.tasks)
        wait_until(lambda: not server.server_state.tasks)


class SlowTokenizer:
    """A tokenizer that takes as long as a test wants."""

    def __init__(self):
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def __getattr__(self, name):
        return getattr(TOKENIZER, name)

    def encode(self, *arguments, **options):
        self.has_begun.set()
        self.may_end.wait()
        return TOKENIZER.encode(*arguments, **options)


def test_a_client_that_leaves_during_work_in_a_thread_is_not_waited_for_and_the_thread_still_counts(caplog):
    slow = SlowTokenizer()
    service = Service(model={"tokenizer": slow}, caps=Caps(max_requests=2))
    threads = service.fastapi.state.context.text_threads.of_model(service.readiness.model.prompt_model.key)
    body = json.dumps({"model": MODEL, "prompt": "a" * 3000}).encode()
    try:
        with served(service.app, Connection) as server:
            with connected(server) as client:
                client.sendall(HEAD.format(len(body)).encode() + body)
                wait_until(slow.has_begun.is_set)
            wait_until(lambda: not server.server_state.tasks)
            assert threads.num_taken == 1
            slow.may_end.set()
            wait_until(lambda: threads.num_taken == 0)
    finally:
        slow.may_end.set()
    assert [record for record in caplog.records if record.exc_info] == []
