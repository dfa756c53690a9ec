"""One route for every kind of request."""

import httpx
import pytest

from service.api.http.access_log import AccessLog
from service.settings import Settings
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


async def test_a_platform_may_have_its_own_names_of_paths():
    """Vertex AI names the paths that it will ask, in the environment."""
    names = {"aip_http_port": "8085", "aip_health_route": "/v1/endpoints/1/health", "aip_predict_route": "/v1/ask/"}
    settings = Settings.model_validate(names)
    assert settings.port == 8085
    assert Settings.model_validate(names | {"port": 80}).port == 80
    service = Service()
    app = AccessLog(service.app, metrics=service.metrics, aliases=settings.path_aliases)
    body = {"model": MODEL, "prompt": "Once"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://levserve") as client:
        assert (await client.get("/v1/endpoints/1/health")).json()["status"] == "complete"
        assert (await client.post("/v1/ask", json=body)).json()["object"] == "text_completion"
        assert (await client.post("/v1/ask:other", json=body)).status_code == 404
