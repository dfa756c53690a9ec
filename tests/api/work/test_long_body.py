"""Long bodies are answered as short ones are, by a process that ends with their clients."""

import asyncio
import json
import os
from dataclasses import replace
from functools import partial

import psutil
import pytest

from service.api.http import receive
from service.api.schema.completions import CompletionRequest
from service.api.work import long_body
from service.api.work.long_body import LongBodies, LongBody
from service.api.work.long_work import LongWork
from service.api.work.text_threads import TextThreads
from service.engine.request import FinishReason
from service.errors import BodyTooLaborious
from service.server.connection import Connection
from service.start.niceness import LONG_TEXT_NICENESS, yield_to_steps
from service.text.chat_template import ChatTemplate
from tests.api.scripted_engine import MODEL, TEMPLATE, Service, model_of, tokens
from tests.api.vectors.scripted_encoder import MODEL as ENCODER
from tests.api.vectors.scripted_encoder import EncoderService
from tests.api.work.body_functions import allocate, echo, ids, niceness, spin
from tests.processes import is_running, seconds_of
from tests.sockets import body_from, connected, served, wait_until

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
TOOLS_TEMPLATE = ChatTemplate("{{ messages | length }}{% if tools %}{{ tools | tojson }}{% endif %}<think>\n", {})
CHATS = [
    {"messages": [USER]},
    {"messages": [USER] * 300},
    {"messages": [USER] * 200, "truncate_prompt_tokens": 9, "return_token_ids": True},
    {"messages": [USER], "stream": True, "stream_options": {"include_usage": True}},
    {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c2"}]},
    {"messages": [USER, {"role": "user", "content": "hi", "tool_calls": [CALL]}]},
    {"messages": [{"role": "user", "content": "refuse"}]},
    {"messages": [{"role": "user"}]},
    {"messages": [USER], "chat_template_kwargs": {"a": 1}},
    {"messages": [USER], "reasoning_effort": "low"},
    {"messages": [USER], "tools": [TOOL]},
    *({"messages": [USER], "tools": [TOOL], "tool_choice": choice} for choice in ("none", "auto", "required")),
    {"messages": [USER], "max_tokens": -1, "top_p": 0, "stop": "", "logit_bias": {"5": 1}},
    {"messages": [USER], "n": 9},
    {"messages": [USER], "max_tokens": 1000},
    {"messages": [USER], "allowed_token_ids": [10**6]},
    {"messages": [USER], "temperature": 3, "model": "other"},
    {"messages": [USER], "model": "other"},
    {"messages": [USER], "unknown": 1},
    {"messages": [USER], "prompt_logprobs": 1, "logprobs": True, "top_logprobs": 1},
    {"messages": []},
    {"messages": [{"role": "user", "content": "\ud800"}]},
]
COMPLETIONS = [
    {"prompt": "Once"},
    {"prompt": ["Once", "upon"], "n": 2, "stream": True},
    {"prompt": "a" * 3000},
    {"prompt": "a" * 3000, "truncate_prompt_tokens": 5, "return_token_ids": True},
    {"prompt": [1, 2, 3], "echo": True, "logprobs": 1},
    {"prompt": "Once", "echo": True},
    {"prompt": [1, 10**9]},
    {"prompt": [[1], [2, -1]]},
    {"prompt": [1] * 1000},
    {"prompt": [1, "a"]},
    {"prompt": "Once", "suffix": "end"},
    {"prompt": ""},
    {"prompt": []},
    {"prompt": ["a"] * 65},
]
RESPONSES = [
    {"input": "hi"},
    {"input": "hi", "instructions": "Be brief.", "stream": True},
    {"input": [USER] * 300},
    {"input": "hi", "tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "function", "name": "g"}},
    {"input": "hi", "tools": [{"type": "function", "name": "f"}], "tool_choice": "required"},
    {"input": "hi", "max_output_tokens": 1000},
    {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
    {"input": "refuse"},
    {"input": "hi", "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "nothing"}}}},
]
TOKENIZED = [
    {"prompt": "Once", "return_token_strs": True},
    {"prompt": "Once", "add_special_tokens": False},
    {"messages": [USER]},
    {"messages": [{"role": "user", "content": "refuse"}]},
    {"messages": [USER], "prompt": "Once"},
]
REQUESTS = [
    *(("/v1/chat/completions", fields) for fields in CHATS),
    *(("/v1/completions", fields) for fields in COMPLETIONS),
    *(("/v1/responses", fields) for fields in RESPONSES),
    *(("/tokenize", fields) for fields in TOKENIZED),
    ("/detokenize", {"tokens": [1, 2, 3]}),
    ("/detokenize", {"tokens": [1, 10**6]}),
]
VECTORS = [
    ("/v1/embeddings", {"input": "a b"}),
    ("/v1/embeddings", {"input": ["a", "a b c"], "prompt_name": "query"}),
    ("/v1/embeddings", {"input": "a", "prompt_name": "none"}),
    ("/v1/embeddings", {"input": [[1, 2], [3]]}),
    ("/v1/embeddings", {"input": [[1, 2], [10**6]]}),
    ("/v1/embeddings", {"input": "a " * 20}),
    ("/v1/embeddings", {"input": "a " * 20, "truncate_prompt_tokens": 3}),
    ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 100}),
    ("/v1/embeddings", {"input": ""}),
    ("/pooling", {"input": "a b"}),
    ("/embedding", {"content": ["a", "a b"]}),
    ("/embedding", {"input": "a " * 20}),
    ("/embedding", {"content": "a " * 20}),
    ("/v1/rerank", {"query": "a", "documents": ["a"]}),
]
SCORES = [
    ("/v1/rerank", {"query": "a", "documents": ["a", "b c"]}),
    ("/v2/rerank", {"query": "a", "documents": ["a", "b c d e f g h i"], "max_tokens_per_doc": 1}),
    ("/v1/rerank", {"query": "a", "documents": ["a " * 20]}),
    ("/v1/score", {"text_1": "a", "text_2": ["b", "c"], "truncate_prompt_tokens": 5}),
    ("/v1/score", {"text_1": "a", "text_2": "b " * 20}),
    ("/v1/score", {"text_1": ["a", "b"], "text_2": ["b"]}),
    ("/v1/embeddings", {"input": "a b"}),
]
CHANGING = ("id", "created", "created_at", "completed_at", "item_id", "response", "call_id")


def lasting(value):
    """Return an answer without what differs from one to the next."""
    if isinstance(value, dict):
        inner = {name: field for name, field in value.items() if name not in CHANGING or isinstance(field, dict)}
        return {name: lasting(field) for name, field in inner.items()}
    return [lasting(item) for item in value] if isinstance(value, list) else value


def documents(text):
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    return [lasting(json.loads(document)) for document in lines or [text]]


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def answered(client, monkeypatch, path, fields, limit):
    """Post a body that is long, or is not."""
    monkeypatch.setattr(receive, "SHORT_BODY_BYTES", limit)
    content = json.dumps({"model": client.model} | fields).encode()
    return await client.post(path, content=content, headers={"content-type": "application/json"})


@pytest.mark.parametrize("chat_template", [TEMPLATE, TOOLS_TEMPLATE, None], ids=["plain", "tools", "none"])
async def test_a_long_body_is_answered_as_a_short_one(monkeypatch, chat_template):
    script = [*tokens("Hello world"), FinishReason.STOP]
    service = Service(script, model={"chat_template": chat_template})
    async with service.client() as client:
        client.model = MODEL
        for path, fields in REQUESTS:
            answers, prompts = [], []
            for limit in (10**6, 0):
                num_before = len(service.engine.streams)
                answers.append(await answered(client, monkeypatch, path, fields, limit))
                submitted = service.engine.streams[num_before:]
                prompts.append([(stream.request.prompt_ids, stream.request.max_tokens) for stream in submitted])
            short, long = answers
            assert (long.status_code, documents(long.text)) == (short.status_code, documents(short.text)), fields
            assert prompts[0] == prompts[1]
    assert service.process.pid is not None
    service.process.end()


@pytest.mark.parametrize(
    ("requests", "vectors"),
    [(VECTORS, {"prompts": {"query": "b "}}), (SCORES, {"is_score": True})],
    ids=["vectors", "scores"],
)
async def test_long_texts_have_the_vectors_of_short_ones(monkeypatch, requests, vectors):
    service, statuses = EncoderService(vectors=vectors), set()
    async with service.client() as client:
        client.model = ENCODER
        for path, fields in requests:
            short, long = [await answered(client, monkeypatch, path, fields, limit) for limit in (10**6, 0)]
            assert (long.status_code, documents(long.text)) == (short.status_code, documents(short.text)), fields
            assert service.encoder.requests[-2] == service.encoder.requests[-1]
            statuses.add(long.status_code)
    assert statuses == {200, 400}
    process = service.fastapi.state.context.long_bodies.process
    assert process.pid is not None
    process.end()


async def test_a_template_of_a_checkpoint_renders_long_bodies_in_their_process():
    isolated = ChatTemplate(TEMPLATE.source, {"bos_token": "<|begin|>"}, is_isolated=True)
    messages = [{"role": "user", "content": "a" * 50_000}]
    body = {"model": MODEL, "messages": messages, "truncate_prompt_tokens": 9, "return_token_ids": True}
    answers = []
    for template in (isolated, TEMPLATE):
        service = Service(model={"chat_template": template})
        answers.append((await service.post("/v1/chat/completions", body)).json()["prompt_token_ids"])
        assert psutil.Process(service.process.pid).children() == []
        service.process.end()
    assert answers[0] == answers[1]


async def test_a_body_that_was_forgotten_meanwhile_is_read_again():
    service = Service(script=[*tokens("Hello"), FinishReason.STOP])
    bodies = [
        {"model": MODEL, "prompt": letter * 50_000, "truncate_prompt_tokens": 5, "return_token_ids": True}
        for letter in "ab"
    ]
    first = [(await service.post("/v1/completions", body)).json()["choices"][0] for body in bodies]
    again = [(await service.post("/v1/completions", body)).json()["choices"][0] for body in bodies]
    assert first == again
    assert first[0]["prompt_token_ids"] != first[1]["prompt_token_ids"]
    service.process.end()


async def test_a_fault_of_ours_shows_no_detail():
    service = Service(model={"max_model_len": "none"})
    async with service.client() as client:
        content = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "canary " * 9000}]})
        answer = await client.post(
            "/v1/chat/completions", content=content, headers={"content-type": "application/json"}
        )
    assert answer.status_code == 500
    assert "canary" not in answer.text
    assert "Error" not in answer.text
    service.process.end()


SPINNING = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
BUSY_S = 2.0  # of a processor: more than the start of the process takes
ENDLESS = b"60"  # seconds


def post(path, **fields):
    body = json.dumps({"model": MODEL} | fields).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def test_the_work_for_a_client_that_leaves_is_killed(monkeypatch):
    monkeypatch.setattr(long_body, "GRACE_S", 0.0)
    service = Service(model={"chat_template": ChatTemplate(SPINNING, {})})
    with served(service.app, Connection) as server:
        with connected(server) as client:
            client.sendall(post("/v1/chat/completions", messages=[{"role": "user", "content": "a" * 50_000}]))
            wait_until(lambda: service.process.pid is not None)
            pid = service.process.pid
            wait_until(lambda: seconds_of(pid) > BUSY_S)
        wait_until(lambda: not is_running(pid))
        with connected(server) as client:  # whose body needs no template
            client.sendall(post("/v1/completions", prompt="a" * 50_000, truncate_prompt_tokens=5))
            assert json.loads(body_from(client))["choices"][0]["text"] == "Hello world"
    service.process.end()


@pytest.mark.parametrize("source", [SPINNING, "{{ 'a' * 4000000000 }}"])
async def test_a_template_that_takes_too_much_ends_its_request_and_the_next_one_is_answered(monkeypatch, source):
    monkeypatch.setattr(long_body, "PROCESSOR_S", 3.0)
    service = Service(model={"chat_template": ChatTemplate(source, {}, is_isolated=True)})
    async with service.client() as client:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "a" * 50_000}]}
        answer = await client.post("/v1/chat/completions", json=body)
        assert answer.json()["error"]["code"] == "request_too_laborious"
        answer = await client.post("/v1/completions", json={"model": MODEL, "prompt": "a" * 99}, timeout=60)
        assert answer.json()["choices"][0]["text"] == "Hello world"
    service.process.end()


@pytest.fixture
async def turns():
    return LongWork(lambda: False)


@pytest.fixture
async def bodies(turns):
    made = LongBodies(turns, TextThreads(partial(yield_to_steps, LONG_TEXT_NICENESS)), max_body_bytes=1024)
    yield made
    made.process.end()


def body_of(content):
    return LongBody(CompletionRequest, content)


async def until(is_so):
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_the_process_yields_to_steps(bodies):
    assert await bodies.make(body_of(b""), niceness) == str(LONG_TEXT_NICENESS).encode()
    assert os.getpriority(os.PRIO_PROCESS, 0) < LONG_TEXT_NICENESS


async def test_the_work_is_charged_in_seconds_of_a_processor(bodies, turns):
    await bodies.make(body_of(b"0.05"), spin)
    assert turns.charged_s >= 0.05


async def test_its_memory_grows_with_the_longest_body(monkeypatch):
    monkeypatch.setattr(long_body, "BASE_BYTES", 200 * 2**20)
    for max_body_bytes in (1024, 2**22):
        bodies = LongBodies(LongWork(lambda: False), TextThreads(), max_body_bytes=max_body_bytes)
        if max_body_bytes == 1024:
            with pytest.raises(BodyTooLaborious, match="too much memory"):
                await bodies.make(body_of(b"500"), allocate)
        else:
            assert await bodies.make(body_of(b"500"), allocate) == b"done"
        bodies.process.end()


async def test_a_process_whose_request_is_gone_is_killed_and_the_next_call_finds_another_one(bodies, monkeypatch):
    monkeypatch.setattr(long_body, "GRACE_S", 0.0)
    await bodies.make(body_of(b"a"), echo)
    pid = bodies.process.pid
    before_s = seconds_of(pid)
    call = asyncio.ensure_future(bodies.make(body_of(ENDLESS), spin))
    await until(lambda: seconds_of(pid) > before_s + 0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: not is_running(pid))
    assert await bodies.make(body_of(b"next"), echo) == b"next"
    assert bodies.process.pid != pid


async def test_a_call_that_ends_soon_after_its_request_is_gone_leaves_the_process_to_others(bodies, monkeypatch):
    monkeypatch.setattr(long_body, "GRACE_S", 60.0)
    await bodies.make(body_of(b"a"), echo)
    pid = bodies.process.pid
    call = asyncio.ensure_future(bodies.make(body_of(b"0.05"), spin))
    await asyncio.sleep(0.01)
    call.cancel()
    assert await bodies.make(body_of(b"next"), echo) == b"next"
    assert bodies.process.pid == pid


async def test_a_call_that_is_gone_before_its_turn_is_not_made(bodies, turns):
    calls = [asyncio.ensure_future(bodies.make(body_of(seconds), spin)) for seconds in (b"0.2", ENDLESS)]
    await asyncio.sleep(0.05)
    calls[1].cancel()
    await calls[0]
    assert await bodies.make(body_of(b"next"), echo) == b"next"
    assert turns.charged_s < float(ENDLESS)


async def test_an_idle_process_is_ended(bodies, monkeypatch):
    monkeypatch.setattr(long_body, "IDLE_S", 0.05)
    await bodies.make(body_of(b"a"), echo)
    pid = bodies.process.pid
    await until(lambda: bodies.process.pid is None)
    assert not is_running(pid)
    assert await bodies.make(body_of(b"next"), echo) == b"next"


async def test_each_process_is_sent_a_model_once_and_keeps_few(bodies, monkeypatch):
    monkeypatch.setattr(long_body, "MAX_MODELS", 2)
    body = body_of(json.dumps({"model": MODEL, "prompt": "a"}).encode())
    models = [replace(model_of(None).prompt_model, name=name, key=name) for name in "abc"]
    for model in (*models[:2], *models[:2]):
        assert await bodies.prompt(body, ids, model) == model.name.encode()
    assert bodies.process.num_starts == 1
    bodies.process.end()
    assert await bodies.prompt(body, ids, models[0]) == b"a"
    assert await bodies.prompt(body, ids, models[1]) == b"b"
    assert bodies.process.num_starts == 2
    assert await bodies.prompt(body, ids, models[2]) == b"c"
    assert bodies.process.num_starts == 3
