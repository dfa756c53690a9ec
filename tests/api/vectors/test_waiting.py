"""Requests for vectors that wait: their clients leave, their time is over, too many wait beside them."""

import json
import time

import pytest

from service.api.http.request_queue import Caps
from service.server.connection import Connection
from tests.api.vectors.scripted_encoder import MODEL, EncoderService, error_of
from tests.sockets import body_from, connected, served, wait_until


def request_of(text):
    body = json.dumps({"model": MODEL, "input": text}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


def silent(**caps):
    """A service whose encoder answers nothing."""
    service = EncoderService(caps=Caps(**caps))
    service.encoder.answers = False
    return service


def test_a_client_that_leaves_ends_its_request():
    service = silent()
    with served(service.app, Connection) as server, connected(server) as client:
        client.sendall(request_of("a"))
        wait_until(lambda: service.encoder.futures)
        client.close()
        wait_until(service.encoder.futures[0].cancelled)


def test_a_request_carries_the_end_of_its_wait_and_its_tokens_are_counted():
    service, began_s = silent(queue_timeout_s=30.0, max_queued_tokens=3), time.perf_counter()
    with served(service.app, Connection) as server, connected(server) as first, connected(server) as second:
        first.sendall(request_of("a b c"))
        wait_until(lambda: service.encoder.futures)
        deadline = service.encoder.last.queue_deadline
        assert deadline.limit_s == 30.0
        assert began_s + 30.0 < deadline.end_s < time.perf_counter() + 30.0
        second.sendall(request_of("a"))
        assert json.loads(body_from(second))["error"]["code"] == "queued_tokens_full"


def test_a_request_that_has_begun_does_not_count_as_waiting():
    service = silent(max_queue_size=1)
    with served(service.app, Connection) as server, connected(server) as first, connected(server) as second:
        first.sendall(request_of("a"))
        wait_until(lambda: service.encoder.futures)
        second.sendall(request_of("b"))
        assert json.loads(body_from(second))["error"]["code"] == "queue_full"
        service.encoder.last.clock.scheduled_s = time.perf_counter()
        service.encoder.answers = True
        with connected(server) as third:
            third.sendall(request_of("c"))
            assert json.loads(body_from(third))["data"][0]["index"] == 0


@pytest.mark.anyio
async def test_a_request_that_waited_too_long_before_it_was_read_is_not_encoded():
    service = EncoderService(caps=Caps(queue_timeout_s=1e-9))
    answer = await service.post(input="a")
    assert (answer.status_code, error_of(answer)["code"]) == (503, "queue_timeout")
    assert service.encoder.requests == []
