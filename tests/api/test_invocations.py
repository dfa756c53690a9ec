"""One route for every kind of request."""

import pytest

from tests.api.scripted_engine import MODEL, Service
from tests.api.vectors.scripted_encoder import MODEL as ENCODER
from tests.api.vectors.scripted_encoder import EncoderService

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"messages": [{"role": "user", "content": "hi"}], "prompt": None}, "chat.completion"),
        ({"prompt": "Once"}, "text_completion"),
    ],
)
async def test_a_model_of_texts_answers_chats_and_completions(fields, kind):
    answer = await Service().post("/invocations", {"model": MODEL, **fields})
    assert (answer.status_code, answer.json()["object"]) == (200, kind)
    assert "x-levserve-ignored" not in answer.headers


async def test_a_stream_is_a_stream():
    answer = await Service().post("/invocations", {"model": MODEL, "prompt": "Once", "stream": True})
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_a_long_chat_is_answered():
    service = Service(model={"max_model_len": 100_000})
    body = {"model": MODEL, "messages": [{"role": "user", "content": "many words " * 4000}]}
    answer = await service.post("/invocations", body)
    assert answer.json()["choices"][0]["message"]["content"] == "Hello world"


@pytest.mark.parametrize(
    ("fields", "is_score", "has"),
    [
        ({"input": "a b"}, False, {"object": "list"}),
        ({"input": "a b", "task": "embed"}, False, {"object": "list"}),
        ({"query": "a", "documents": ["b", "c"]}, True, {"model": ENCODER}),
        ({"text_1": "a", "text_2": "b"}, True, {"object": "list"}),
    ],
)
async def test_an_encoder_answers_embeddings_rankings_and_scores(fields, is_score, has):
    service = EncoderService(vectors={"is_score": is_score})
    async with service.client() as client:
        answer = await client.post("/invocations", json={"model": ENCODER, **fields})
    assert answer.status_code == 200, answer.text
    assert has.items() <= answer.json().items()


async def test_what_is_ignored_and_what_is_refused_is_named_as_on_the_kinds_own_route():
    answer = await Service().post("/invocations", {"model": MODEL, "prompt": "a", "keep_alive": 5, "colour": 1})
    assert answer.headers["x-levserve-ignored"] == "keep_alive, colour"
    answer = await Service().post("/invocations", {"model": MODEL, "prompt": "a", "n": 100})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")


async def test_a_body_of_no_kind_is_refused():
    answer = await Service().post("/invocations", {"model": MODEL, "colour": "red"})
    assert answer.status_code == 400
    assert "'messages'" in answer.json()["error"]["message"]
