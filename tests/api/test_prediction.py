"""OpenAI's `prediction`: its tokens reach the engine, the answer is as without it, and usage says what became of it."""

import pytest

from service.engine.request import FinishReason, TokenEvent
from tests.api.scripted_engine import MAX_MODEL_LEN, Service, tokens

pytestmark = pytest.mark.anyio

DRAFTING = {"num_drafts": 7}


def service_that_drafts():
    return Service(model=DRAFTING)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Hello world", "Hello world"),
        ([{"type": "text", "text": "Hello "}, {"type": "text", "text": "world"}], "Hello world"),
        ("", ""),
        ([], ""),
    ],
    ids=["text", "parts", "empty", "no parts"],
)
async def test_the_tokens_of_a_prediction_reach_each_choice(content, text):
    service = service_that_drafts()
    response = await service.chat("hi", n=2, prediction={"type": "content", "content": content})
    assert response.status_code == 200
    assert [stream.request.prediction for stream in service.engine.streams] == [tuple(tokens(text))] * 2
    assert response.json()["choices"][0]["message"]["content"] == "Hello world"


async def test_a_prediction_longer_than_the_context_is_cut():
    service = service_that_drafts()
    response = await service.chat("hi", prediction={"type": "content", "content": "a b " * 50_000})
    assert response.status_code == 200
    assert 0 < len(service.engine.last.request.prediction) <= MAX_MODEL_LEN


async def test_usage_counts_what_was_accepted_and_rejected_of_all_choices():
    service = service_that_drafts()
    service.engine.script = [
        TokenEvent(tuple(tokens("Hello")), num_predicted=(4, 3)),
        TokenEvent(tuple(tokens(" world")), FinishReason.STOP, num_predicted=(2, 5)),
    ]
    prediction = {"type": "content", "content": "Hello there"}
    details = (await service.chat("hi", n=2, prediction=prediction)).json()["usage"]["completion_tokens_details"]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (12, 16)
    plain = (await service.chat("hi")).json()["usage"]["completion_tokens_details"]
    assert plain.keys() == {"reasoning_tokens"}


async def test_where_nothing_is_drafted_a_prediction_is_named_as_ignored():
    response = await Service().chat("hi", prediction={"type": "content", "content": "Hello"})
    assert response.headers["x-levserve-ignored"] == "prediction"
    assert "accepted_prediction_tokens" not in response.json()["usage"]["completion_tokens_details"]


@pytest.mark.parametrize(
    "prediction",
    [
        {"type": "content"},
        {"type": "file", "content": "a"},
        {"type": "content", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]},
    ],
    ids=["none", "type", "image"],
)
async def test_a_prediction_that_is_none_is_refused_by_name(prediction):
    response = await service_that_drafts().chat("hi", prediction=prediction)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("prediction")
