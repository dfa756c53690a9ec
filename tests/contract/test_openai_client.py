"""The official client against this server: in one process, and over a real port."""

import socket
import threading
import time
from contextlib import contextmanager

import openai
import pytest
import uvicorn

from service.engine.request import FinishReason
from service.errors import EngineError, NotReady, Overloaded
from tests.api.scripted_engine import END, MODEL, Service, tokens

pytestmark = pytest.mark.anyio

KEY = "sk-contract"
HELLO = [{"role": "user", "content": "hi"}]


def client_of(service, api_key=KEY):
    return openai.AsyncOpenAI(api_key=api_key, base_url="http://test/v1", http_client=service.client(), max_retries=0)


@pytest.fixture
def service():
    return Service(api_keys=(KEY,))


async def test_a_chat_is_answered(service):
    async with client_of(service) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=20, temperature=0, seed=1)
    assert answer.choices[0].message.content == "Hello world"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer._request_id


async def test_an_answer_can_be_sent_back(service):
    async with client_of(service) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=HELLO)
        messages = [*HELLO, answer.choices[0].message, {"role": "user", "content": "more"}]
        assert await client.chat.completions.create(model=MODEL, messages=messages)


async def test_a_chat_is_streamed_with_its_usage(service):
    async with client_of(service) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello world"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == len(tokens("Hello world"))


async def test_the_clients_own_stream_helper_understands_the_stream(service):
    async with client_of(service) as client, client.chat.completions.stream(model=MODEL, messages=HELLO) as stream:
        answer = await stream.get_final_completion()
    assert answer.choices[0].message.content == "Hello world"


async def test_a_completion_is_answered_and_streamed(service):
    async with client_of(service) as client:
        answer = await client.completions.create(model=MODEL, prompt="Once")
        stream = await client.completions.create(model=MODEL, prompt=tokens("Once"), stream=True, stop=["world"])
        text = "".join([chunk.choices[0].text async for chunk in stream])
    assert answer.choices[0].text == "Hello world"
    assert text == "Hello "


async def test_token_ids_reach_the_client(service):
    async with client_of(service) as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=HELLO, extra_body={"return_token_ids": True, "ignore_eos": True}
        )
    assert answer.choices[0].token_ids == [*tokens("Hello world"), END]
    assert answer.prompt_token_ids


async def test_the_prompts_logprobs_reach_the_client(service):
    async with client_of(service) as client:
        extensions = {"prompt_logprobs": 2, "allowed_token_ids": tokens("Hello world")}
        chat = await client.chat.completions.create(model=MODEL, messages=HELLO, extra_body=extensions)
        text = await client.completions.create(model=MODEL, prompt=tokens("Once"), extra_body=extensions)
    for got, prompt in (
        (chat.prompt_logprobs, service.engine.streams[0].request.prompt_ids),
        (text.choices[0].prompt_logprobs, tokens("Once")),
    ):
        assert got[0] is None
        assert [place[str(token_id)]["rank"] for place, token_id in zip(got[1:], prompt[1:], strict=True)] == [1] * (
            len(prompt) - 1
        )


async def test_several_choices_of_a_chat_with_their_logprobs(service):
    async with client_of(service) as client:
        fields = {"model": MODEL, "messages": HELLO, "n": 3, "logprobs": True, "top_logprobs": 2}
        answer = await client.chat.completions.create(**fields, logit_bias={"5": -100}, presence_penalty=0.5)
        stream = await client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    expected = tokens("Hello world")
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.completion_tokens == 3 * len(expected)
    for choice in answer.choices:
        content = choice.logprobs.content
        assert b"".join(bytes(entry.bytes) for entry in content) == b"Hello world"
        assert [entry.logprob for entry in content] == [-0.25] * len(expected)
        assert all([top.logprob for top in entry.top_logprobs] == [-0.25, -0.5] for entry in content)
        assert all(entry.token == entry.top_logprobs[0].token for entry in content)
    assert chunks[-1].usage == answer.usage
    for index in range(3):
        own = [chunk.choices[0] for chunk in chunks[:-1] if chunk.choices[0].index == index]
        assert own[0].delta.role == "assistant"
        assert "".join(choice.delta.content or "" for choice in own) == "Hello world"
        assert sum(len(choice.logprobs.content) for choice in own if choice.logprobs) == len(expected)
        assert own[-1].finish_reason == "stop"


async def test_completions_of_several_prompts_with_echo_and_logprobs(service):
    async with client_of(service) as client:
        fields = {"model": MODEL, "prompt": ["Once", tokens("Twice")], "n": 2, "echo": True, "logprobs": 1}
        answer = await client.completions.create(**fields, best_of=2)
        chunks = [chunk async for chunk in await client.completions.create(**fields, stream=True)]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    texts = [choice.text for choice in answer.choices]
    assert texts == ["OnceHello world"] * 2 + ["TwiceHello world"] * 2
    for choice in answer.choices:
        logprobs = choice.logprobs
        assert logprobs.token_logprobs[0] is logprobs.top_logprobs[0] is None
        assert set(logprobs.token_logprobs[1:]) == {-0.25}
        is_begin = [token == "<|begin|>" for token in logprobs.tokens]
        assert is_begin == [choice.index < 2, *[False] * (len(is_begin) - 1)]
        assert logprobs.tokens[-1] == "<|end|>"
        written = slice(sum(is_begin), -1)
        for token, offset in zip(logprobs.tokens[written], logprobs.text_offset[written], strict=True):
            assert choice.text[offset : offset + len(token)] == token
        own = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
        assert "".join(part.text for part in own) == choice.text
        for field in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
            assert [x for part in own if part.logprobs for x in getattr(part.logprobs, field)] == getattr(
                logprobs, field
            )


async def test_the_models_are_listed(service):
    async with client_of(service) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).owned_by == "levserve"


async def test_what_has_no_effect_is_accepted_and_named(service):
    fields = {"store": True, "max_tokens": 100_000, "extra_body": {"foo": 1, "reasoning": {"effort": "low"}}}
    async with client_of(service) as client:
        answer = await client.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO, **fields)
    assert answer.parse().choices[0].message.content
    assert set(answer.headers["x-levserve-ignored"].split(", ")) == {"store", "foo", "max_tokens", "reasoning.effort"}


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"n": 9}, openai.BadRequestError, "n"),
        ({"top_logprobs": 5}, openai.BadRequestError, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, openai.BadRequestError, "top_logprobs"),
        ({"logit_bias": {"99999": 1}}, openai.BadRequestError, "logit_bias"),
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, openai.BadRequestError, "tools"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, openai.BadRequestError, "tools[0].type"),
        ({"model": "gpt-4"}, openai.NotFoundError, "model"),
    ],
)
async def test_what_is_not_served_is_the_clients_own_error(service, fields, kind, param):
    async with client_of(service) as client:
        with pytest.raises(kind) as caught:
            await client.chat.completions.create(**({"model": MODEL, "messages": HELLO} | fields))
    assert caught.value.param == param
    assert caught.value.code
    assert caught.value.type == "invalid_request_error"


async def test_a_wrong_key_is_the_clients_authentication_error(service):
    async with client_of(service, "wrong") as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.models.list()
    assert caught.value.code == "invalid_api_key"


async def test_overload_is_the_clients_rate_limit_error(service):
    service.engine.refusal = Overloaded(running=4, limit=4)
    async with client_of(service) as client:
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    assert caught.value.response.headers["retry-after"] == "1"


@pytest.mark.parametrize("status", [500, 503])
async def test_our_faults_are_the_clients_server_errors(service, status):
    service.engine.script = [EngineError("boom")]
    if status == 503:
        service.readiness.error = NotReady("weights")
    async with client_of(service) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert caught.value.status_code == status


async def test_a_failure_inside_a_stream_is_raised_by_the_client(service):
    service.engine.script = [*tokens("Hello"), EngineError("boom")]
    chunks = []

    async def read(stream):
        async for chunk in stream:
            chunks.append(chunk.choices[0].delta.content or "")

    async with client_of(service) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        with pytest.raises(openai.APIError, match="The engine failed") as caught:
            await read(stream)
    assert "".join(chunks) == "Hello"
    assert caught.value.code == "engine_error"


@contextmanager
def served(service):
    """Serve an app on a real port, as the service does."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(service.app, http="h11", ws="none", lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


def wait_until(is_so, limit_s=20.0):
    end_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.005)


def test_over_a_real_port_a_chat_streams_and_a_client_that_leaves_stops_its_sequence():
    service = Service([*tokens("Hello world"), FinishReason.STOP], model={"max_model_len": 100_000})
    with served(service) as url, openai.OpenAI(api_key="none", base_url=url, max_retries=0) as client:
        stream = client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Hello world"

        service.engine.script, service.engine.pace_s = tokens("word ") * 10_000, 0.01
        stream = client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        for _, _ in zip(range(5), stream, strict=False):
            pass
        stream.close()
        wait_until(lambda: service.engine.last.is_aborted)
        assert service.engine.last.num_events < 500

        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=1.0).chat.completions.create(model=MODEL, messages=HELLO)
        wait_until(lambda: len(service.engine.streams) == 3 and service.engine.last.is_aborted)
