"""A client that disconnects or stops reading costs nothing more."""

import asyncio
import json

import pytest

from service.api.http.sse import COMMENT, HEAD_AFTER_S, KEEP_ALIVE_S, frame
from service.engine.request import FinishReason
from service.errors import EngineError
from tests.api.http.advance import advance, until
from tests.api.scripted_engine import MODEL, STALL, Service, Wait, tokens

PING = b'event: ping\ndata: {"type":"ping"}\n\n'  # what Anthropic's streams send meanwhile

pytestmark = pytest.mark.anyio

ENDLESS = tokens("word ") * 10_000


class Client:
    """An ASGI client by hand, which can go away, or stop to read, after some parts of the answer."""

    def __init__(
        self, service, *, stream, parts_until_gone=None, parts_until_deaf=None, path="/v1/chat/completions", **fields
    ):
        self.sent = []
        self._gone = asyncio.Event()
        self._parts_until_gone = parts_until_gone
        self._parts_until_deaf = parts_until_deaf
        messages = {"messages": [{"role": "user", "content": "hi"}]}
        inputs = {
            "/v1/completions": {"prompt": "hi", "max_tokens": 200},
            "/v1/messages": messages | {"max_tokens": 200},
            "/v1/responses": {"input": "hi"},
        }
        prompt = inputs.get(path, messages)
        self._body = json.dumps({"model": MODEL, "stream": stream, **prompt, **fields}).encode()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }
        self.answered = asyncio.ensure_future(service.app(scope, self._receive, self._send))

    def leave(self):
        self._gone.set()

    async def _receive(self):
        if self._body:
            body, self._body = self._body, b""
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        self.sent.append(message)
        if len(self.sent) == self._parts_until_gone:
            self.leave()
        if len(self.sent) == self._parts_until_deaf:
            await asyncio.Event().wait()
        await asyncio.sleep(0)


def received(client):
    return b"".join(message.get("body", b"") for message in client.sent)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("parts", [1, 2, 5])
async def test_a_client_that_leaves_a_stream_stops_it_within_a_few_tokens(path, parts):
    service = Service(ENDLESS)
    client = Client(service, stream=True, parts_until_gone=parts, path=path)
    async with asyncio.timeout(5):
        await client.answered
    assert service.engine.last.is_aborted
    assert service.engine.last.num_events <= parts + 5


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_the_first_token_stops_the_request(stream):
    service = Service([STALL])
    client = Client(service, stream=stream)
    async with asyncio.timeout(5):
        while not service.engine.streams:
            await asyncio.sleep(0.001)
        client.leave()
        await client.answered
    assert service.engine.last.is_aborted
    assert client.sent[0]["status"] == 499


async def test_a_client_that_leaves_while_it_sends_causes_no_error():
    async def receive():
        return {"type": "http.disconnect"}

    sent = []

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    await Service().app(scope, receive, send)
    assert sent[0]["status"] == 499


async def test_a_client_that_does_not_read_is_given_up_when_its_time_is_over():
    service = Service(ENDLESS, request_timeout_s=60)
    client = Client(service, stream=True, parts_until_deaf=3)
    await until(lambda: len(client.sent) == 3)
    advance(60)
    await client.answered
    assert service.engine.last.is_aborted
    assert client.sent[-1]["more_body"]  # no end, so the server closes the connection


async def test_what_comes_together_leaves_together():
    service = Service([tokens("Hello world"), tokens(" and more"), FinishReason.STOP])
    client = Client(service, stream=True)
    async with asyncio.timeout(5):
        await client.answered
    bodies = [message["body"] for message in client.sent[1:]]
    # The role and the first text; the second; the reason of the end; the end.
    assert [body.count(b"data: ") for body in bodies] == [2, 1, 1, 1]
    first = [json.loads(event.removeprefix("data: ")) for event in bodies[0].decode().split("\n\n") if event]
    assert [event["choices"][0]["delta"]["content"] for event in first] == ["", "Hello world"]


@pytest.mark.parametrize(("stream", "timeout_s"), [(False, 60), (True, HEAD_AFTER_S - 1)])
async def test_a_request_longer_than_its_time_is_a_504(stream, timeout_s):
    service = Service([STALL], request_timeout_s=timeout_s)
    answering = asyncio.ensure_future(service.chat(stream=stream))
    await until(lambda: service.engine.streams)
    advance(timeout_s)
    response = await answering
    assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
    assert service.engine.last.is_aborted


async def test_a_stream_longer_than_its_time_ends_with_an_error():
    service = Service([*tokens("Hello"), STALL], request_timeout_s=60)
    client = Client(service, stream=True)
    await until(lambda: b"Hello" in b"".join(message.get("body", b"") for message in client.sent))
    advance(60)
    await client.answered
    last = b"".join(message.get("body", b"") for message in client.sent).split(b"\n\n")[-2]
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "timeout"
    assert service.engine.last.is_aborted


async def test_a_stream_starts_without_an_event_if_none_comes_for_a_while():
    wait = Wait()
    service = Service([wait, *tokens("Hello"), FinishReason.STOP], request_timeout_s=600)
    client = Client(service, stream=True)
    await until(lambda: service.engine.streams)
    advance(HEAD_AFTER_S - 0.5)
    await asyncio.sleep(0.01)
    assert client.sent == []
    advance(0.5)
    await until(lambda: len(client.sent) == 2)
    assert client.sent[0]["status"] == 200
    assert client.sent[1]["body"] == COMMENT
    advance(KEEP_ALIVE_S)
    await until(lambda: len(client.sent) == 3)
    wait.over.set()
    await client.answered
    assert received(client).startswith(COMMENT * 2 + b"data: {")
    assert received(client).endswith(b"data: [DONE]\n\n")


async def test_a_pause_between_events_is_filled_too():
    wait = Wait()
    service = Service([*tokens("Hello"), wait, *tokens(" world"), FinishReason.STOP], request_timeout_s=600)
    client = Client(service, stream=True)
    await until(lambda: b"Hello" in received(client))
    advance(HEAD_AFTER_S)
    await asyncio.sleep(0.01)
    assert COMMENT not in received(client)  # events came meanwhile
    advance(KEEP_ALIVE_S)
    await until(lambda: COMMENT in received(client))
    wait.over.set()
    await client.answered
    assert b" world" in received(client)


@pytest.mark.parametrize(
    ("path", "failure"),
    [
        ("/v1/chat/completions", b'data: {"error":'),
        ("/v1/responses", b'event: error\ndata: {"type":"error","code":'),
        ("/v1/messages", b'event: error\ndata: {"type":"error","error":'),
    ],
)
async def test_a_failure_after_the_head_is_an_event(path, failure):
    wait = Wait()
    service = Service([wait, EngineError("broken")], request_timeout_s=600)
    client = Client(service, stream=True, path=path)
    await until(lambda: service.engine.streams)
    advance(HEAD_AFTER_S)
    await until(lambda: len(client.sent) == 2)
    wait.over.set()
    await client.answered
    assert client.sent[0]["status"] == 200
    assert received(client).startswith((PING if path == "/v1/messages" else COMMENT) + failure)


async def test_the_head_of_a_slow_stream_names_the_fields_that_were_ignored():
    wait = Wait()
    service = Service([wait, FinishReason.STOP], request_timeout_s=600)
    client = Client(service, stream=True, verbosity="low", reasoning_effort="high", max_tokens=10**6)
    await until(lambda: service.engine.streams)
    advance(HEAD_AFTER_S)
    await until(lambda: client.sent)
    headers = dict(client.sent[0]["headers"])
    assert headers[b"x-levserve-ignored"] == b"verbosity, reasoning_effort, max_tokens"
    wait.over.set()
    await client.answered


async def test_two_hundred_clients_that_leave_free_everything():
    service = Service(ENDLESS)
    clients = [Client(service, stream=bool(i % 2), parts_until_gone=3 if i % 2 else None) for i in range(200)]
    async with asyncio.timeout(20):
        while len(service.engine.streams) < 200:
            await asyncio.sleep(0.001)
        for client in clients:
            client.leave()
        await asyncio.gather(*(client.answered for client in clients))
    assert all(stream.is_aborted for stream in service.engine.streams)
    assert (await service.chat(max_tokens=3)).status_code == 200


def test_an_event_is_one_line_whatever_the_text():
    got = frame({"text": "a\r\nb\n\nc\0"})
    assert got.startswith(b"data: ")
    assert got.count(b"\n") == 2
    assert got.endswith(b"\n\n")
    assert b"\r" not in got
