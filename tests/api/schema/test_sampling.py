"""Sampling options: those that a client may send reach the engine, and no others."""

import json

import pytest

from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.completions import CompletionRequest
from service.api.schema.wire import parse
from service.engine.token_mask import pack_token_mask
from service.errors import RequestError
from service.text.generation_defaults import GenerationDefaults
from tests.api.scripted_engine import END, TOKENIZER, Service

pytestmark = pytest.mark.anyio

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}
BOTH = (CompletionRequest, ChatCompletionRequest)
VOCAB = TOKENIZER.vocab_size


def refusal(kind, document):
    with pytest.raises(RequestError) as caught:
        parse(kind, json.dumps(document).encode())
    return caught.value


async def sampling_of(service=None, **fields):
    service = service or Service()
    response = await service.complete(**fields)
    assert response.status_code == 200, response.text
    return service.engine.last.request.sampling


async def refused_param(**fields):
    response = await Service().complete(**fields)
    assert response.status_code == 400, response.text
    return response.json()["error"]["param"]


async def test_every_field_reaches_the_engine():
    sampling = await sampling_of(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, repetition_penalty=1.2, presence_penalty=-1,
        frequency_penalty=2, logit_bias={"3": -100, "5": 2.5}, min_tokens=4, logprobs=3, seed=11,
    )  # fmt: skip
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 7, 0.1)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.2, -1.0, 2.0)
    assert (sampling.logit_bias, sampling.min_tokens) == ({3: -100.0, 5: 2.5}, 4)
    assert (sampling.num_logprobs, sampling.seed) == (3, 11)


async def test_what_asks_for_nothing_is_nothing():
    sampling = await sampling_of(top_k=-1, logit_bias={}, logprobs=None, stop_token_ids=[], n=1, best_of=1, echo=False)
    assert (sampling.top_k, sampling.logit_bias, sampling.num_logprobs) == (0, {}, None)
    assert not sampling.has_penalties


async def test_the_authors_numbers_hold_where_the_request_has_none():
    author = GenerationDefaults(0.6, 0.9, 20, 0.05, 1.1)
    sampling = await sampling_of(Service(model={"defaults": author}))
    assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (20, 0.05, 1.1)
    sampling = await sampling_of(Service(model={"defaults": author}), top_k=0, min_p=0, repetition_penalty=1)
    assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("bias", "param"),
    [
        ([], "logit_bias"),
        ("x", "logit_bias"),
        ({"a": 1}, "logit_bias"),
        ({"-1": 1}, "logit_bias"),
        ({"01": 1}, "logit_bias"),
        ({"1.0": 1}, "logit_bias"),
        ({"٣": 1}, "logit_bias"),
        ({"9" * 5000: 1}, "logit_bias"),
        ({"1": 101}, "logit_bias.1"),
        ({"1": -100.5}, "logit_bias.1"),
        ({"1": True}, "logit_bias.1"),
        ({"1": "1"}, "logit_bias.1"),
        ({"1": None}, "logit_bias.1"),
        ({str(i): 1 for i in range(1025)}, "logit_bias"),
    ],
)
def test_a_bias_that_is_none_is_refused(bias, param):
    assert refusal(CompletionRequest, TEXT | {"logit_bias": bias}).param == param


async def test_a_thousand_biases_are_taken():
    assert len((await sampling_of(logit_bias={str(i): 1 for i in range(VOCAB)})).logit_bias) == VOCAB
    body = parse(CompletionRequest, json.dumps(TEXT | {"logit_bias": {str(i): 1 for i in range(1024)}}).encode())
    assert len(body.logit_bias) == 1024


async def test_tokens_that_the_model_does_not_have_are_refused_by_place():
    assert await refused_param(logit_bias={"1": 1, str(VOCAB): 1}) == "logit_bias"
    assert await refused_param(stop_token_ids=[1, VOCAB]) == "stop_token_ids[1]"
    assert await refused_param(stop_token_ids=[1, -1]) == "stop_token_ids[1]"
    assert await refused_param(stop_token_ids=list(range(33))) == "stop_token_ids"


def mask_of(token_ids):
    return pack_token_mask(token_ids).tobytes()


async def test_allowed_tokens_reach_the_engine_and_those_that_the_model_does_not_have_are_refused():
    assert (await sampling_of(allowed_token_ids=[5, 3, 5])).allowed_mask == mask_of({3, 5})
    assert (await sampling_of(allowed_token_ids=None)).allowed_mask is None
    assert await refused_param(allowed_token_ids=[1, 2, VOCAB]) == "allowed_token_ids[2]"


async def test_some_allowed_token_may_come_before_min_tokens():
    held_back = {"min_tokens": 2, "stop_token_ids": [5]}
    assert await refused_param(allowed_token_ids=[5, END], **held_back) == "allowed_token_ids"
    assert (await sampling_of(allowed_token_ids=[5, 6], **held_back)).allowed_mask == mask_of({5, 6})
    assert (await sampling_of(allowed_token_ids=[5], stop_token_ids=[5])).allowed_mask == mask_of({5})


async def test_stop_tokens_are_the_models_and_the_requests():
    for fields, expected in (
        ({"stop_token_ids": [3, 5]}, {END, 3, 5}),
        ({"stop_token_ids": [3], "ignore_eos": True}, {3}),
        ({"ignore_eos": True}, set()),
    ):
        service = Service()
        await service.complete(**fields)
        assert service.engine.last.request.stop_ids == expected


async def test_min_tokens_fit_max_tokens():
    assert await refused_param(min_tokens=17) == "min_tokens"  # of 16, the default
    assert await refused_param(min_tokens=6, max_tokens=5) == "min_tokens"
    assert (await sampling_of(min_tokens=5, max_tokens=5)).min_tokens == 5


@pytest.mark.parametrize("value", [9, 10**9, 0, -1])
@pytest.mark.parametrize("kind", [CompletionRequest, ChatCompletionRequest])
def test_one_choice_too_many_is_refused(kind, value):
    assert refusal(kind, (TEXT if kind is CompletionRequest else CHAT) | {"n": value}).param == "n"


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        (CompletionRequest, {"logprobs": 21}, "logprobs"),
        (CompletionRequest, {"logprobs": True}, "logprobs"),
        (CompletionRequest, {"logprobs": -1}, "logprobs"),
        (CompletionRequest, {"best_of": 2}, "best_of"),
        (CompletionRequest, {"n": 2, "best_of": 3}, "best_of"),
        (CompletionRequest, {"n": 2, "prompt": ["a"] * 33}, "n"),
        (CompletionRequest, {"echo": 1}, "echo"),
        (ChatCompletionRequest, {"logprobs": 1}, "logprobs"),
        (ChatCompletionRequest, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (ChatCompletionRequest, {"logprobs": True, "top_logprobs": 10**9}, "top_logprobs"),
        (ChatCompletionRequest, {"top_logprobs": 1}, "top_logprobs"),
        (ChatCompletionRequest, {"echo": True}, "echo"),
        *((kind, {"prompt_logprobs": value}, "prompt_logprobs") for kind in BOTH for value in (-1, 21, True, "1", 1.5)),
        *((kind, {"prompt_logprobs": 0, "stream": True}, "prompt_logprobs") for kind in BOTH),
        *((kind, {"allowed_token_ids": value}, "allowed_token_ids") for kind in BOTH for value in ([], 7, {"7": 1})),
        *(
            (kind, {"allowed_token_ids": [7, value]}, "allowed_token_ids[1]")
            for kind in BOTH
            for value in (-1, "7", True)
        ),
    ],
)
def test_what_does_not_go_together_or_too_far_is_refused_by_name(kind, fields, param):
    assert refusal(kind, (TEXT if kind is CompletionRequest else CHAT) | fields).param == param
