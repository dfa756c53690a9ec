"""Ollama's routes through its own client, over a socket."""

import asyncio
import contextlib
import json
from datetime import datetime

import ollama
import pytest
from pydantic import BaseModel

from service.api.answers import ollama as ollama_answers
from service.api.http.sse import HEAD_AFTER_S
from service.engine.request import FinishReason
from service.errors import EngineError
from service.server.connection import Connection
from service.text.chat_template import ChatTemplate
from tests.api.answer_types import as_typed
from tests.api.http.advance import advance, until
from tests.api.http.test_sse import Client, received
from tests.api.scripted_engine import MAX_MODEL_LEN, MODEL, TEMPLATE, TOKENIZER, Service, Wait, tokens
from tests.api.test_thinking import THOUGHT
from tests.api.test_thinking import service_of as thinking_service_of
from tests.api.test_tools import TOOLS, TWO, service_of
from tests.api.vectors.scripted_encoder import MAX_TOKENS, EncoderService
from tests.sockets import served

pytestmark = pytest.mark.anyio

HI = [{"role": "user", "content": "hi"}]
COUNTS = ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration")


@contextlib.contextmanager
def client_of(service, **options):
    with served(service.app, Connection) as server:
        host, port = server.address
        with ollama.Client(host=f"http://{host}:{port}", timeout=30, **options) as client:
            yield client


def prompt_of(service):
    return TOKENIZER.backend.decode(service.engine.last.request.prompt_ids, skip_special_tokens=False)


def added_up(parts):
    """The message of a stream, as clients add it up."""
    message = {"content": "", "thinking": "", "tool_calls": []}
    for part in parts:
        message["content"] += part.message.content or ""
        message["thinking"] += part.message.thinking or ""
        message["tool_calls"] += part.message.tool_calls or ()
    return message


def test_a_chat_is_answered_with_its_counts():
    service = Service()
    with client_of(service) as client:
        answer = client.chat(MODEL, HI)
    assert (answer.model, answer.message.role, answer.message.content) == (MODEL, "assistant", "Hello world")
    assert (answer.done, answer.done_reason) == (True, "stop")
    assert answer.message.tool_calls is None
    assert answer.prompt_eval_count == len(service.engine.last.request.prompt_ids)
    assert answer.eval_count == len(tokens("Hello world"))
    assert answer.total_duration >= answer.eval_duration >= 0
    assert answer.total_duration >= answer.load_duration
    assert datetime.fromisoformat(answer.created_at).tzinfo is not None
    assert prompt_of(service) == TEMPLATE.render(HI)


def test_a_stream_has_an_object_for_each_part_and_a_last_one_with_the_counts():
    with client_of(Service()) as client:
        *parts, last = client.chat(MODEL, HI, stream=True)
    assert added_up(parts)["content"] == "Hello world"
    assert not any(part.done for part in parts)
    assert (last.done, last.done_reason, last.message.content) == (True, "stop", "")
    assert all(getattr(last, name) is not None for name in COUNTS)
    assert all(getattr(part, name) is None for part in parts for name in COUNTS)


async def test_streams_are_the_default_and_lines_of_json():
    response = await Service().post("/api/chat", {"model": MODEL, "messages": HI})
    assert response.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in response.text.splitlines()]
    for line in lines:
        assert as_typed(ollama_answers.OllamaChat, line) == line
    response = await Service().post("/api/generate", {"model": MODEL, "prompt": "hi"})
    for line in map(json.loads, response.text.splitlines()):
        assert as_typed(ollama_answers.OllamaGenerated, line) == line


@pytest.mark.parametrize("stream", [False, True])
def test_tools_are_called_and_their_results_found_without_ids(stream):
    service = service_of(TWO)
    with client_of(service) as client:
        answered = client.chat(MODEL, HI, tools=TOOLS, stream=stream)
        message = added_up(answered) if stream else answered.message
        calls = message["tool_calls"]
        assert [call.function.name for call in calls] == ["weather", "clock"]
        assert [call.function.arguments for call in calls] == [{"city": "Ulm 🌍"}, {}]
        assert message["content"] == "Wait.\n"
        history = [
            *HI,
            {"role": "assistant", "content": message["content"], "tool_calls": calls},
            {"role": "tool", "content": "12:00", "tool_name": "clock"},
            {"role": "tool", "content": "warm", "tool_name": "weather"},
        ]
        assert client.chat(MODEL, history, tools=TOOLS).done


RESULTS = (
    "{{ tools }}{% for m in messages %}{% for c in m.tool_calls or [] %}[{{ c.id }} {{ c.function.name }}]{% endfor %}"
)
RESULTS += "{% if m.role == 'tool' %}[{{ m.tool_call_id }} {{ m.content }}]{% endif %}{% endfor %}<tool_call>"


def called(name, **fields):
    return {"function": {"name": name, "arguments": {}}, **fields}


@pytest.mark.parametrize(
    ("calls", "results", "expected"),
    [
        ([called("a")], [{"content": "x"}], "[call00001 a][call00001 x]"),
        ([called("a"), called("b")], [{"content": "x"}, {"content": "y"}], "[call00001 x][call00002 y]"),
        (
            [called("a"), called("b")],
            [{"content": "y", "tool_name": "b"}, {"content": "x", "tool_name": "a"}],
            "[call00002 y][call00001 x]",
        ),
        (
            [called("a", id="1"), called("a", id="2")],
            [{"content": "y", "tool_call_id": "2"}, {"content": "x", "tool_call_id": "1"}],
            "[2 y][1 x]",
        ),
    ],
)
async def test_a_result_belongs_to_the_call_of_its_id_else_of_its_name_else_of_its_place(calls, results, expected):
    service = service_of("ok", chat_template=ChatTemplate(RESULTS, TOKENIZER.special_tokens))
    messages = [*HI, {"role": "assistant", "tool_calls": calls}, *({"role": "tool"} | result for result in results)]
    response = await service.post("/api/chat", {"model": MODEL, "messages": messages, "stream": False})
    assert response.status_code == 200, response.text
    assert expected in prompt_of(service)


async def test_a_call_that_a_limit_cuts_is_left_out():
    service = service_of(TWO[:-20], reason=FinishReason.LENGTH)
    fields = {"model": MODEL, "messages": HI, "tools": TOOLS, "stream": False}
    answer = (await service.post("/api/chat", fields)).json()
    assert answer["done_reason"] == "length"
    assert [call["function"]["name"] for call in answer["message"]["tool_calls"]] == ["weather"]


class City(BaseModel):
    name: str


def test_a_format_holds_the_answer():
    service = Service([*tokens('{"name": "Ulm"}'), FinishReason.STOP])
    with client_of(service) as client:
        for stated in ("json", City.model_json_schema()):
            for ask in (
                lambda stated=stated: client.chat(MODEL, HI, format=stated).message.content,
                lambda stated=stated: client.generate(MODEL, "hi", format=stated).response,
                lambda stated=stated: client.generate(MODEL, "hi", format=stated, raw=True).response,
            ):
                assert City.model_validate_json(ask()) == City(name="Ulm")
                assert service.engine.last.request.constraint is not None
        client.chat(MODEL, HI, format="")
        assert service.engine.last.request.constraint is None


SWITCHES = "<think></think>{{ messages[0].content }} {{ enable_thinking }}|{{ reasoning_effort }}\n"


@pytest.mark.parametrize(("think", "prompt"), [(True, "True|"), (False, "False|"), ("low", "|low"), (None, "|")])
def test_thinking_is_switched_and_answered_apart(think, prompt):
    service = thinking_service_of(THOUGHT, chat_template=ChatTemplate(SWITCHES, TOKENIZER.special_tokens))
    with client_of(service) as client:
        message = client.chat(MODEL, HI, think=think).message
        assert (message.thinking, message.content) == ("Hm. 🌍", "Yes.")
        assert added_up(client.chat(MODEL, HI, think=think, stream=True))["thinking"] == "Hm. 🌍"
        answer = client.generate(MODEL, "hi", think=think)
        assert (answer.thinking, answer.response) == ("Hm. 🌍", "Yes.")
    assert prompt_of(service).endswith(f"hi {prompt}")


def test_earlier_thinking_reaches_the_template():
    service = thinking_service_of(THOUGHT)
    with client_of(service) as client:
        client.chat(MODEL, [*HI, {"role": "assistant", "content": "Yes.", "thinking": "Hm."}, *HI])
    assert "<think>Hm.</think>Yes." in prompt_of(service)


def test_a_prompt_is_answered_as_a_message_or_continued_as_it_is():
    service = Service()
    with client_of(service) as client:
        answer = client.generate(MODEL, "hi", system="Be brief.")
        assert (answer.response, answer.done, answer.done_reason) == ("Hello world", True, "stop")
        assert answer.thinking is None
        assert prompt_of(service) == TEMPLATE.render([{"role": "system", "content": "Be brief."}, *HI])
        *parts, last = client.generate(MODEL, "Once", raw=True, stream=True)
        assert "".join(part.response for part in parts) == "Hello world"
        assert last.done
        assert service.engine.last.request.prompt_ids == tuple(TOKENIZER.encode("Once", add_special_tokens=True))
        # As long as the context allows, and not OpenAI's 16 tokens.
        request = service.engine.last.request
        assert request.max_tokens == MAX_MODEL_LEN - len(request.prompt_ids)


def test_a_model_without_a_chat_template_continues_prompts():
    service = Service(model={"chat_template": None})
    with client_of(service) as client:
        assert client.generate(MODEL, "Once").response == "Hello world"
        assert service.engine.last.request.prompt_ids == tuple(TOKENIZER.encode("Once", add_special_tokens=True))
        with pytest.raises(ollama.ResponseError, match="has no chat template") as refused:
            client.chat(MODEL, HI)
    assert refused.value.status_code == 400


def test_options_reach_the_engine():
    service = Service()
    options = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 7,
        "min_p": 0.125,
        "seed": 3,
        "num_predict": 9,
        "stop": ["x"],
        "repeat_penalty": 1.5,
        "presence_penalty": 0.75,
        "frequency_penalty": -0.75,
    }
    with client_of(service) as client:
        for ask in (
            lambda: client.chat(MODEL, HI, options=options),
            lambda: client.generate(MODEL, "hi", options=options),
            lambda: client.generate(MODEL, "hi", options=options, raw=True),
        ):
            ask()
            request = service.engine.last.request
            sampling = request.sampling
            assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.25, 7, 0.125)
            assert (sampling.seed, request.max_tokens, sampling.repetition_penalty) == (3, 9, 1.5)
            assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.75, -0.75)


@pytest.mark.parametrize("num_predict", [-1, -2, 0, -1.0])
async def test_a_limit_that_is_not_positive_is_none(num_predict):
    service = Service()
    fields = {"model": MODEL, "messages": HI, "options": {"num_predict": num_predict, "seed": -1}}
    assert (await service.post("/api/chat", fields)).status_code == 200
    request = service.engine.last.request
    assert request.max_tokens == MAX_MODEL_LEN - len(request.prompt_ids)


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_those_of_chats(stream):
    with client_of(Service()) as client:
        for answered in (
            client.chat(MODEL, HI, logprobs=True, top_logprobs=2, stream=stream),
            client.generate(MODEL, "hi", raw=True, logprobs=True, top_logprobs=2, stream=stream),
        ):
            parts = list(answered) if stream else [answered]
            entries = [entry for part in parts for entry in part.logprobs or ()]
            assert "".join(entry.token for entry in entries) == "Hello world"
            assert all(len(entry.top_logprobs) == 2 and entry.logprob == -0.25 for entry in entries)


def test_nothing_to_answer_loads_the_model():
    service = Service()
    with client_of(service) as client:
        assert client.chat(MODEL, []).done_reason == "load"
        assert client.generate(MODEL).done_reason == "load"
        assert [part.done_reason for part in client.generate(MODEL, stream=True)] == ["load"]
    assert service.engine.streams == []


def test_models_are_listed_and_described():
    with client_of(service_of("ok")) as client:
        [model] = client.list().models
        assert (model.model, model.details.quantization_level) == (MODEL, "int8")
        [loaded] = client.ps().models
        assert (loaded.model, loaded.context_length) == (MODEL, 2048)
        for name in (MODEL, f"{MODEL}:latest"):
            shown = client.show(name)
            assert shown.capabilities == ["completion", "tools"]
            assert "<tool_call>" in shown.template
            assert shown.modelinfo[f"{shown.modelinfo['general.architecture']}.context_length"] == 2048


@pytest.mark.parametrize(
    ("method", "path", "body", "kind"),
    [
        ("GET", "/api/tags", None, ollama_answers.OllamaModels),
        ("GET", "/api/ps", None, ollama_answers.LoadedModels),
        ("POST", "/api/show", {"model": MODEL}, ollama_answers.ShownModel),
        ("POST", "/api/show", {"name": MODEL}, ollama_answers.ShownModel),
        ("POST", "/api/show", {}, ollama_answers.OllamaError),
        ("POST", "/api/chat", {"model": MODEL}, ollama_answers.OllamaChat),
        ("GET", "/api/blobs", None, ollama_answers.OllamaError),
    ],
)
async def test_answers_have_the_fields_of_their_schemas(method, path, body, kind):
    async with Service().client() as client:
        answer = (await client.request(method, path, json=body)).json()
    assert as_typed(kind, answer) == answer


async def test_the_version_is_one_that_clients_can_compare():
    async with Service().client() as client:
        version = (await client.get("/api/version")).json()["version"]
    assert [int(part) for part in version.split(".")] >= [0, 12, 0]


def test_a_name_may_have_the_tag_of_the_latest_model():
    with client_of(Service()) as client:
        assert client.chat(f"{MODEL}:latest", HI).model == f"{MODEL}:latest"
        for name in ("other", f"{MODEL}:7b"):
            for ask in (lambda name=name: client.chat(name, HI), lambda name=name: client.show(name)):
                with pytest.raises(ollama.ResponseError) as refused:
                    ask()
                assert refused.value.status_code == 404
                assert name in refused.value.error


@pytest.mark.parametrize(
    ("path", "fields", "field"),
    [
        ("/api/chat", {"options": {"temperature": 3}}, "options.temperature"),
        ("/api/chat", {"options": {"top_k": "many"}}, "options.top_k"),
        ("/api/chat", {"options": {"stop": ["x"] * 17}}, "options.stop"),
        ("/api/chat", {"options": {"repeat_penalty": 0}}, "options.repeat_penalty"),
        ("/api/chat", {"messages": [{"role": "user", "images": ["aGk="]}]}, "messages[0].images"),
        ("/api/chat", {"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        ("/api/chat", {"format": "xml"}, "format"),
        ("/api/chat", {"format": {"type": "string", "pattern": "("}}, "format"),
        ("/api/chat", {"top_logprobs": 2}, "top_logprobs"),
        ("/api/generate", {"images": ["aGk="]}, "images"),
        ("/api/generate", {"context": [1, 2]}, "context"),
        ("/api/generate", {"raw": True, "system": "x"}, "system"),
        ("/api/generate", {"suffix": "x"}, "suffix"),
        ("/api/generate", {"raw": True, "format": {"type": "string", "pattern": "("}}, "format"),
    ],
)
async def test_what_cannot_be_is_refused_by_ollamas_name(path, fields, field):
    stated = {"model": MODEL, "messages": HI} if path == "/api/chat" else {"model": MODEL, "prompt": "hi"}
    response = await Service().post(path, stated | fields)
    assert response.status_code == 400
    assert response.json().keys() == {"error"}
    assert f"'{field}" in response.json()["error"]


@pytest.mark.parametrize(
    ("path", "fields", "ignored"),
    [
        ("/api/chat", {"keep_alive": "5m", "options": {"num_ctx": 4096}}, "options.num_ctx, keep_alive"),
        ("/api/chat", {"keep_alive": None, "truncate": False, "options": {"numa": False}}, None),
        ("/api/chat", {"think": True}, "think"),
        ("/api/chat", {"think": "low"}, "think"),
        ("/api/chat", {"options": {"num_predict": 10**6}}, "options.num_predict"),
        ("/api/generate", {"template": "{{ .Prompt }}", "raw": True, "think": False}, "template, think"),
        ("/api/generate", {"images": [], "context": [], "mood": "good"}, "mood"),
    ],
)
async def test_what_has_no_effect_is_told_under_ollamas_name(path, fields, ignored):
    stated = {"model": MODEL, "messages": HI} if path == "/api/chat" else {"model": MODEL, "prompt": "hi"}
    for stream in (False, True):
        response = await Service().post(path, stated | {"stream": stream} | fields)
        assert response.status_code == 200, response.text
        assert set((response.headers.get("x-levserve-ignored") or "").split(", ")) == set((ignored or "").split(", "))


def test_a_failure_is_a_status_before_the_stream_and_a_line_in_it():
    with client_of(Service([EngineError("broken")])) as client:
        with pytest.raises(ollama.ResponseError, match="The engine failed") as failed:
            list(client.chat(MODEL, HI, stream=True))
        assert failed.value.status_code == 500
    with client_of(Service([*tokens("Hello"), EngineError("broken")])) as client:
        answered = client.chat(MODEL, HI, stream=True)
        assert next(answered).message.content
        with pytest.raises(ollama.ResponseError, match="The engine failed"):
            list(answered)


def test_a_key_is_asked_for_in_ollamas_shape():
    service = Service(api_keys=("sk-1",))
    with client_of(service) as client, pytest.raises(ollama.ResponseError) as refused:
        client.list()
    assert refused.value.status_code == 401
    with client_of(service, headers={"Authorization": "Bearer sk-1"}) as client:
        assert client.list().models


async def test_a_slow_stream_is_kept_alive_by_objects_without_text():
    wait = Wait()
    service = Service([wait, *tokens("Hello"), FinishReason.STOP], request_timeout_s=600)
    client = Client(service, stream=True, path="/api/chat")
    await until(lambda: service.engine.streams)
    advance(HEAD_AFTER_S)
    await until(lambda: len(client.sent) == 2)
    [nothing] = map(json.loads, received(client).splitlines())
    assert (nothing["message"], nothing["done"]) == ({"role": "assistant", "content": ""}, False)
    wait.over.set()
    async with asyncio.timeout(5):
        await client.answered
    assert all(json.loads(line)["model"] == MODEL for line in received(client).splitlines())


async def test_long_bodies_are_answered_as_short_ones():
    service = Service(model={"max_model_len": 200_000})
    text = "word " * 60_000
    for path, fields, render in (
        ("/api/chat", {"messages": [{"role": "user", "content": text}]}, True),
        ("/api/generate", {"prompt": text}, True),
        ("/api/generate", {"prompt": text, "raw": True}, False),
    ):
        response = await service.post(path, {"model": MODEL, "stream": False, **fields})
        assert response.status_code == 200, response.text
        expected = TEMPLATE.render([{"role": "user", "content": text}]) if render else text
        ids = TOKENIZER.encode(expected, add_special_tokens=not render)
        assert service.engine.last.request.prompt_ids == tuple(ids)
    service.process.end()


def test_texts_have_vectors():
    with client_of(EncoderService()) as client:
        answer = client.embed("org/encoder", ["the cat", "a"])
        assert len(answer.embeddings) == 2
        assert answer.prompt_eval_count > 0
        [single] = client.embed("org/encoder:latest", "the cat").embeddings
        assert single == answer.embeddings[0]
        assert client.embeddings("org/encoder", "the cat").embedding == single
        long = "the cat " * MAX_TOKENS
        assert client.embed("org/encoder", long).prompt_eval_count == MAX_TOKENS
        with pytest.raises(ollama.ResponseError, match="token"):
            client.embed("org/encoder", long, truncate=False)
        with pytest.raises(ollama.ResponseError) as refused:
            client.chat("org/encoder", HI)
        assert refused.value.status_code == 400
        assert client.show("org/encoder").capabilities == ["embedding"]
