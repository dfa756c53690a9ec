import json
from functools import partial

import pytest

from service.engine.request import FinishReason
from service.errors import Draining, EngineError, EngineStopped, Overloaded
from service.text import chat_template
from service.text.chat_template import ChatTemplate
from service.text.template_process import TemplateProcess
from tests.api.scripted_engine import END, MAX_MODEL_LEN, MODEL, TOKENIZER, Service, tokens

pytestmark = pytest.mark.anyio


def events(response):
    assert response.headers["content-type"].startswith("text/event-stream")
    frames = response.text.split("\n\n")
    assert frames.pop() == ""
    assert all(frame.startswith("data: ") for frame in frames)
    return [frame if frame == "data: [DONE]" else json.loads(frame[6:]) for frame in frames]


async def test_a_conversation_is_answered_in_openais_shape():
    service = Service()
    response = await service.chat("hi", max_tokens=20)
    answer = response.json()
    prompt_ids = tokens("<|turn|>user:hi<|turn|>assistant:")
    assert response.status_code == 200
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == MODEL
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello world", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": None,
        }
    ]
    num_tokens = len(tokens("Hello world"))
    assert answer["usage"] == {
        "prompt_tokens": len(prompt_ids),
        "completion_tokens": num_tokens,
        "total_tokens": len(prompt_ids) + num_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert service.engine.last.request.prompt_ids == tuple(prompt_ids)
    assert service.engine.last.request.stop_ids == {END}


async def test_a_template_that_never_ends_is_a_refusal_that_names_the_model(monkeypatch):
    endless = "{% for m in messages %}{{ m.content }}{% if m.content == 'on' %}{% for i in range(99999) %}"
    endless += "{% for j in range(99999) %}{% endfor %}{% endfor %}{% endif %}{% endfor %}"
    monkeypatch.setattr(chat_template, "TemplateProcess", partial(TemplateProcess, render_s=0.2))
    service = Service(model={"chat_template": ChatTemplate(endless, {}, is_isolated=True)})
    refusal = await service.chat("on")
    error = refusal.json()["error"]
    assert (refusal.status_code, error["code"], error["param"]) == (400, "template_failed", "messages")
    assert f"The chat template of the model '{MODEL}' took too long" in error["message"]
    assert (await service.chat("off")).status_code == 200


async def test_a_stream_has_the_role_the_text_the_reason_and_the_end():
    got = events(await Service().chat(stream=True))
    assert got[-1] == "data: [DONE]"
    choices = [event["choices"][0] for event in got[:-1]]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "Hello world"
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert len({event["id"] for event in got[:-1]}) == 1
    assert all("usage" not in event for event in got[:-1])


async def test_a_stream_ends_with_the_usage_when_asked():
    got = events(await Service().chat(stream=True, stream_options={"include_usage": True}))[:-1]
    assert all(event["usage"] is None for event in got[:-1])
    assert got[-1]["choices"] == []
    assert got[-1]["usage"]["completion_tokens"] == len(tokens("Hello world"))


async def test_token_ids_are_returned_on_demand():
    expected = [*tokens("Hello world"), END]
    answer = (await Service().chat(return_token_ids=True)).json()
    assert answer["choices"][0]["token_ids"] == expected
    assert answer["prompt_token_ids"] == tokens("<|turn|>user:hi<|turn|>assistant:")
    got = events(await Service().chat(return_token_ids=True, stream=True))[:-1]
    assert got[0]["prompt_token_ids"] == answer["prompt_token_ids"]
    assert [i for event in got for i in event["choices"][0].get("token_ids", [])] == expected


async def test_a_stop_string_ends_the_text_and_aborts_the_sequence():
    service = Service([*tokens("One. STOP Two. "), *tokens("x") * 50])
    answer = (await service.chat(stop=[" STOP", "never"])).json()
    assert answer["choices"][0]["message"]["content"] == "One."
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert service.engine.last.is_aborted
    assert service.engine.last.num_events <= len(tokens("One. STOP")) + 1


async def test_what_was_held_back_for_a_stop_string_comes_at_the_end():
    answer = (await Service([*tokens("a ST"), FinishReason.STOP]).chat(stop="STOP")).json()
    assert answer["choices"][0]["message"]["content"] == "a ST"


async def test_a_character_is_streamed_whole():
    service = Service([*tokens("🌍é"), FinishReason.STOP])
    got = events(await service.chat(stream=True))[:-1]
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in got) == "🌍é"
    assert all("\ufffd" not in json.dumps(event) for event in got)


async def test_the_length_ends_an_answer_that_does_not_stop():
    service = Service(tokens("x" * 20) * 10)
    answer = (await service.chat(max_completion_tokens=5)).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize(("settings", "expected"), [({}, None), ({"default_max_tokens": 7}, 7)])
async def test_without_a_limit_the_operators_default_or_the_context_is_the_limit(settings, expected):
    service = Service(**settings)
    answer = (await service.chat()).json()
    room = MAX_MODEL_LEN - answer["usage"]["prompt_tokens"]
    assert service.engine.last.request.max_tokens == (expected or room)


@pytest.mark.parametrize("max_tokens", [MAX_MODEL_LEN, 2**40, -1, None])
async def test_a_limit_beyond_the_context_means_the_rest_of_it(max_tokens):
    service = Service(default_max_tokens=10_000)
    response = await service.chat(max_tokens=max_tokens)
    request = service.engine.last.request
    assert request.max_tokens == MAX_MODEL_LEN - len(request.prompt_ids)
    is_cut = max_tokens not in (-1, None)
    assert response.headers.get("x-levserve-ignored") == ("max_tokens" if is_cut else None)


async def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers():
    response = await Service().chat("word " * 400)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")


async def test_more_messages_than_the_context_has_tokens_are_refused_before_they_are_rendered():
    # This one would be rendered to a token or two.
    template = ChatTemplate("{{ messages | length }}", {})
    service = Service(model={"chat_template": template})
    message = {"role": "user", "content": ""}
    body = {"model": MODEL, "max_tokens": 1}
    fits = await service.post("/v1/chat/completions", body | {"messages": [message] * MAX_MODEL_LEN})
    refused = await service.post("/v1/chat/completions", body | {"messages": [message] * (MAX_MODEL_LEN + 1)})
    assert (fits.status_code, refused.status_code) == (200, 400)
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert f"at least {MAX_MODEL_LEN + 1} tokens" in error["message"]


async def test_a_model_without_a_template_names_completions():
    response = await Service(model={"chat_template": None}).chat()
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "messages")
    assert "/v1/completions" in error["message"]


async def test_a_template_that_refuses_is_the_clients_error():
    error = (await Service().chat("refuse")).json()["error"]
    assert error["param"] == "messages"
    assert "no such thing" in error["message"]


async def test_another_model_is_not_here():
    response = await Service().chat(model="gpt-4")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (Overloaded(running=2, limit=2), 429, "server_overloaded"),
        (Draining(), 503, "shutting_down"),
        (EngineStopped("boom"), 503, "engine_stopped"),
    ],
)
async def test_an_engine_that_takes_no_request_is_a_status_also_for_streams(stream, refusal, status, code):
    service = Service()
    service.engine.refusal = refusal
    response = await service.chat(stream=stream)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert int(response.headers["retry-after"]) >= 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_token_is_a_status(stream):
    service = Service([EngineError("secret detail")])
    response = await service.chat(stream=stream)
    assert response.status_code == 500
    assert "secret" not in response.text
    assert service.engine.last.is_aborted


@pytest.mark.parametrize(
    ("error", "code"),
    [(EngineError("secret"), "engine_error"), (ValueError("secret"), "internal_error"), (Draining(), "shutting_down")],
)
async def test_a_failure_inside_a_stream_is_its_last_event(error, code):
    service = Service([*tokens("Hello"), error])
    got = events(await service.chat(stream=True))
    assert got[-1]["error"]["code"] == code
    assert set(got[-1]["error"]) == {"message", "type", "param", "code"}
    assert "secret" not in json.dumps(got)
    assert service.engine.last.is_aborted


async def test_a_sequence_that_the_server_stops_is_an_error_and_not_an_answer():
    response = await Service([*tokens("Hello"), FinishReason.ABORT]).chat()
    assert (response.status_code, response.json()["error"]["code"]) == (503, "shutting_down")


async def test_a_sequence_that_just_ends_is_an_error():
    assert (await Service(tokens("Hello")).chat()).status_code == 500


async def test_the_seed_is_the_clients_or_random():
    service = Service()
    seeds = []
    for fields in ({"seed": 7}, {"seed": -1}, {}, {}):
        await service.chat(**fields)
        seeds.append(service.engine.last.request.sampling.seed)
    assert seeds[:2] == [7, 2**63 - 1]
    assert seeds[2] != seeds[3]
    assert all(0 <= seed < 2**63 for seed in seeds)


async def test_ignoring_the_end_of_text_leaves_no_stop_token():
    service = Service()
    await service.chat(ignore_eos=True)
    assert service.engine.last.request.stop_ids == frozenset()


async def test_the_tokenizer_of_these_tests_has_the_special_token_of_the_template():
    assert TOKENIZER.backend.token_to_id("<|turn|>") in tokens("<|turn|>user:hi")


async def test_metadata_is_taken_and_changes_no_answer():
    answers = [(await Service().chat(**fields)).json() for fields in ({}, {"metadata": {"key": "value"}})]
    assert answers[0]["choices"] == answers[1]["choices"]
