import asyncio
import json
import threading

import pytest
from tokenizers import AddedToken

from service.api.generation.started import SHORT_PROMPT_CHARS
from service.text.generation_defaults import GenerationDefaults
from service.text.tokenizer import Tokenizer
from tests.api.scripted_engine import END, MAX_MODEL_LEN, TOKENIZER, Service, tokens
from tests.text.small_tokenizers import byte_level

pytestmark = pytest.mark.anyio

# A value of every option that an operator may state a default for.
REQUESTED = {"temperature": 0.5, "top_p": 0.8, "top_k": 3, "min_p": 0, "repetition_penalty": 1.2, "max_tokens": 2}


async def refusal(prompt, **fields):
    response = await Service().complete(prompt, **fields)
    assert response.status_code == 400, response.text
    return response.json()["error"]


async def test_a_text_is_continued_in_openais_shape():
    service = Service()
    answer = (await service.complete("Once")).json()
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["choices"] == [
        {
            "index": 0,
            "text": "Hello world",
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
            "prompt_token_ids": None,
            "token_ids": None,
            "prompt_logprobs": None,
        }
    ]
    begin = TOKENIZER.backend.token_to_id("<|begin|>")
    assert service.engine.last.request.prompt_ids == (begin, *tokens("Once"))
    assert service.engine.last.request.max_tokens == 16


@pytest.mark.parametrize("prompt", [[5, 6, 7], [[5, 6, 7]]])
async def test_token_ids_are_taken_as_they_are(prompt):
    service = Service()
    assert (await service.complete(prompt)).status_code == 200
    assert service.engine.last.request.prompt_ids == (5, 6, 7)


async def test_a_list_of_one_text_is_a_text():
    assert (await Service().complete(["Once"])).status_code == 200


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ([], "prompt"),
        ([[]], "prompt"),
        (["a", 7], "prompt[1]"),
        ([[1], [2, -1]], "prompt[1][1]"),
        ([[1], [True]], "prompt[1][0]"),
        (["a", [[1]]], "prompt[1][0]"),
        (["a"] * 65, "prompt"),
        ([-1], "prompt[0]"),
        ([1, TOKENIZER.vocab_size], "prompt[1]"),
        ([1, 2**32], "prompt[1]"),
        ([1, True], "prompt[1]"),
        ([1, 2.0], "prompt[1]"),
        ([1, "a"], "prompt[1]"),
        ([[1, [2]]], "prompt[1]"),
        ([[[1]]], "prompt[0]"),
        (7, "prompt"),
        ({"a": 1}, "prompt"),
        (None, "prompt"),
    ],
)
async def test_an_invalid_prompt_is_refused_by_its_path(prompt, param):
    assert (await refusal(prompt))["param"] == param


async def test_an_empty_text_is_the_beginning_alone():
    service = Service()
    await service.complete("")
    assert service.engine.last.request.prompt_ids == (TOKENIZER.backend.token_to_id("<|begin|>"),)


async def test_a_text_of_megabytes_is_refused_unread():
    assert (await refusal("a" * 3_000_000))["code"] == "context_length_exceeded"


async def test_a_prompt_that_fills_the_context_is_refused():
    error = await refusal([5] * MAX_MODEL_LEN)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")


async def test_the_last_token_of_the_context_can_be_asked_for():
    service = Service()
    await service.complete([5] * (MAX_MODEL_LEN - 1), max_tokens=1)
    assert service.engine.last.request.max_tokens == 1


async def test_a_stream_carries_text_ids_and_usage():
    service = Service()
    fields = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    response = await service.complete([5, 6], **fields)
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-accel-buffering"] == "no"
    frames = [frame[6:] for frame in response.text.split("\n\n") if frame]
    assert frames.pop() == "[DONE]"
    got = [json.loads(frame) for frame in frames]
    choices = [choice for event in got for choice in event["choices"]]
    assert choices[0]["prompt_token_ids"] == [5, 6]
    assert all("prompt_token_ids" not in choice for choice in choices[1:])
    assert [i for choice in choices for i in choice.get("token_ids", [])] == [*tokens("Hello world"), END]
    assert "".join(choice["text"] for choice in choices) == "Hello world"
    assert got[-1]["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize(
    ("fields", "operator", "author", "expected"),
    [
        ({"temperature": 0, "top_p": 0.5}, 0.7, GenerationDefaults(0.6, 0.9), (0.0, 0.5)),
        ({}, 0.7, GenerationDefaults(0.6, 0.9), (0.7, 0.9)),
        ({}, 0.0, GenerationDefaults(0.6), (0.0, 1.0)),
        ({}, None, GenerationDefaults(0.6), (0.6, 1.0)),
        ({}, None, GenerationDefaults(), (1.0, 1.0)),
    ],
)
async def test_sampling_is_the_requests_else_the_operators_else_the_authors(fields, operator, author, expected):
    service = Service(model={"defaults": author}, default_temperature=operator)
    await service.complete(**fields)
    sampling = service.engine.last.request.sampling
    assert (sampling.temperature, sampling.top_p) == expected


@pytest.mark.parametrize(
    ("fields", "expected"), [({}, (0.2, 0.9, 7, 0.1, 1.5, 5)), (REQUESTED, (0.5, 0.8, 3, 0.0, 1.2, 2))]
)
async def test_the_operators_defaults_of_a_model_come_before_those_of_all_models(fields, expected):
    own, author = GenerationDefaults(0.2, 0.9, 7, 0.1, 1.5, 5), GenerationDefaults(0.6, 0.7, 9, 0.3, 1.1)
    model = {"defaults": author, "operator_defaults": own}
    service = Service(model=model, default_temperature=1.5, default_max_tokens=9)
    await service.complete(**fields)
    request = service.engine.last.request
    sampling = request.sampling
    options = (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.repetition_penalty)
    assert (*options, request.max_tokens) == expected


async def test_a_long_prompt_does_not_hold_up_the_other_requests():
    begun, may_end = threading.Event(), threading.Event()

    class Held(Tokenizer):
        def encode(self, text, **options):
            if len(text) > SHORT_PROMPT_CHARS:
                begun.set()
                assert may_end.wait(10), "the event loop waits for the encoding"
            return super().encode(text, **options)

    service = Service(model={"max_model_len": 10**7, "tokenizer": Held(byte_level())})
    long = asyncio.create_task(service.complete("a" * (SHORT_PROMPT_CHARS + 1), max_tokens=1))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    assert (await service.complete("short")).status_code == 200
    assert not long.done()
    may_end.set()
    assert (await long).status_code == 200


FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>")


def infilling_service(script=None):
    backend = byte_level(adds_begin=True)
    backend.add_tokens([AddedToken(name, special=True, normalized=False) for name in FIM])
    return Service(script, model={"tokenizer": Tokenizer(backend), "vocab_size": backend.get_vocab_size()})


async def test_a_suffix_marks_the_gap_that_is_filled():
    service = infilling_service()
    answer = (await service.complete("Once", suffix=" time", echo=True)).json()
    request, encode = service.engine.last.request, service.readiness.model.tokenizer.encode
    assert list(request.prompt_ids) == encode(f"{FIM[0]}Once{FIM[1]} time{FIM[2]}", add_special_tokens=True)
    assert service.readiness.model.tokenizer.backend.token_to_id(FIM[3]) in request.stop_ids
    # OpenAI's `echo` is of the prompt, which the text after the gap is not part of.
    assert answer["choices"][0]["text"] == "OnceHello world"
    assert answer["usage"]["prompt_tokens"] == len(request.prompt_ids)
    plain = (await service.complete("Once", suffix="")).json()
    assert plain["usage"]["prompt_tokens"] < len(request.prompt_ids)


async def test_a_suffix_is_refused_where_the_tokenizer_marks_no_gaps():
    error = (await Service().complete("Once", suffix=" time")).json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "suffix")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": 1}, "suffix"),
        ({"truncate_prompt_tokens": 2}, "truncate_prompt_tokens"),
        ({"echo": True, "logprobs": 1}, "logprobs"),
        ({"prompt": [1, 10**6]}, "prompt[1]"),
        ({"suffix": "a" * 1000}, "prompt"),
    ],
)
async def test_what_contradicts_a_suffix_is_refused_by_name(fields, param):
    error = (await infilling_service().complete(**{"prompt": "Once", "suffix": "b", "max_tokens": 8} | fields)).json()[
        "error"
    ]
    assert error["param"] == param
