"""Every field that a route does not honour: a promise is refused by its name, a hint is accepted and named."""

import json

import pytest

from service.api.schema.audio import AudioRequest
from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.completions import CompletionRequest
from service.api.schema.embeddings import EmbeddingsRequest
from service.api.schema.messages import CountTokensRequest, MessagesRequest
from service.api.schema.responses import ResponsesRequest
from tests.api.hearing.scripted_speech import SpeechService
from tests.api.scripted_engine import MODEL, Service
from tests.api.vectors.scripted_encoder import EncoderService

pytestmark = pytest.mark.anyio

ROUTES = {
    "/v1/chat/completions": (ChatCompletionRequest, {"messages": [{"role": "user", "content": "hi"}]}),
    "/v1/completions": (CompletionRequest, {"prompt": "Once"}),
    "/v1/responses": (ResponsesRequest, {"input": "hi"}),
    "/v1/messages": (MessagesRequest, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}),
    "/v1/messages/count_tokens": (CountTokensRequest, {"messages": [{"role": "user", "content": "hi"}]}),
    "/v1/embeddings": (EmbeddingsRequest, {"input": "hi"}),
    "/v1/audio/transcriptions": (AudioRequest, {}),
}
REFUSED = [(path, name) for path, (body, _) in ROUTES.items() for name in sorted(body.refused)]
HINTS = [(path, name) for path, (body, _) in ROUTES.items() for name in sorted(body.hints)]
NEUTRAL = [(path, name, value) for path, name in REFUSED for value in (None, *ROUTES[path][0].refused[name])]


async def answer_of(path, *, strict_fields=False, **fields):
    if path == "/v1/embeddings":
        return await EncoderService(strict_fields=strict_fields).post(path, **ROUTES[path][1] | fields)
    if ROUTES[path][0] is AudioRequest:
        return await SpeechService(strict_fields=strict_fields).hear(path, **fields)
    return await Service(strict_fields=strict_fields).post(path, {"model": MODEL} | ROUTES[path][1] | fields)


@pytest.mark.parametrize(("path", "name"), REFUSED)
async def test_a_field_without_effect_is_refused_by_its_name(path, name):
    answer = await answer_of(path, **{name: {"no": "such value"}})
    error = answer.json()["error"]
    stated = error.get("details", error)  # Anthropic's shape has them there
    found = answer.status_code, stated.get("error_code", stated.get("code")), stated["param"]
    assert found == (400, "unsupported_parameter", name)
    assert f"'{name}'" in error["message"]


@pytest.mark.parametrize(("path", "name", "value"), NEUTRAL, ids=json.dumps)
async def test_a_value_that_changes_nothing_is_taken(path, name, value):
    answer = await answer_of(path, **{name: value})
    assert answer.status_code == 200, answer.text
    assert "x-levserve-ignored" not in answer.headers


@pytest.mark.parametrize(("path", "name"), HINTS)
async def test_a_hint_is_accepted_and_named_in_the_answer(path, name):
    answer = await answer_of(path, **{name: {"no": "such value"}})
    assert answer.status_code == 200, answer.text
    is_told = ROUTES[path][0].hints[name] is not None
    assert answer.headers.get("x-levserve-ignored") == (name if is_told else None)


@pytest.mark.parametrize(("path", "name"), HINTS)
async def test_strict_fields_refuse_a_hint_by_its_name(path, name):
    answer = await answer_of(path, strict_fields=True, **{name: {"no": "such value"}})
    if ROUTES[path][0].hints[name] is None:
        assert answer.status_code == 200, answer.text
    else:
        error = answer.json()["error"]
        stated = error.get("details", error)  # Anthropic's shape has them there
        found = answer.status_code, stated.get("error_code", stated.get("code")), stated["param"]
        assert found == (400, "unsupported_parameter", name)
