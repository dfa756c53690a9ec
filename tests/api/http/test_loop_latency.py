"""The worst bodies that are legal JSON are refused or answered while the event loop goes on with other requests."""

import asyncio
import json
import threading

import pytest

from service.api import chat, completions, responses
from service.engine.request import FinishReason
from tests.api.scripted_engine import MODEL, Service, tokens

pytestmark = pytest.mark.anyio

USER = [{"role": "user", "content": "hi"}]
NUM_TURNS = 3  # that the event loop takes at least; work on the loop itself leaves it one


async def turns_during(work):
    """Return the result of some work, and how often the event loop came round to others meanwhile."""
    task, num_turns = asyncio.ensure_future(work), 0
    while not task.done():
        await asyncio.sleep(0.005)
        num_turns += 1
    return await task, num_turns


BODIES = {
    "messages": {"messages": [{"role": "user", "content": ""}] * 40_000},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 40_000}]},
    "allowed ids": {"messages": [{"role": "user", "content": "hi"}], "allowed_token_ids": [1] * 1_300_000},
}


@pytest.mark.parametrize("name", BODIES)
async def test_lists_without_end_are_refused_by_name_beside_others(name):
    service = Service()
    response, num_turns = await turns_during(service.post("/v1/chat/completions", {"model": MODEL} | BODIES[name]))
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_value")
    assert error["param"].startswith("allowed_token_ids" if name == "allowed ids" else "messages")
    assert num_turns >= NUM_TURNS
    assert not service.engine.streams


async def test_a_million_ids_are_refused_beside_others():
    prompt = [1] * 1_300_000
    content = json.dumps({"model": MODEL, "prompt": prompt}, separators=(",", ":")).encode()
    service = Service()
    async with service.client() as client:
        request = client.post("/v1/completions", content=content, headers={"content-type": "application/json"})
        response, num_turns = await turns_during(request)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert num_turns >= NUM_TURNS


async def test_a_wrong_id_is_named_wherever_it_is():
    response = await Service().complete([1, 2, -1])
    assert response.json()["error"]["param"] == "prompt[2]"
    response = await Service().complete([1, 10**9])
    assert response.json()["error"]["param"] == "prompt[1]"


STRUCTURES = {
    "objects": {"messages": [{}] * 150_000},
    "lists": {"tools": [[]] * 1_000_000},
    "names": {"metadata": {str(i): "" for i in range(200_000)}},
}


@pytest.mark.parametrize("name", STRUCTURES)
async def test_structure_without_end_is_refused_before_it_is_parsed(name):
    content = json.dumps({"model": MODEL} | STRUCTURES[name], separators=(",", ":")).encode()
    async with Service().client() as client:
        response = await client.post(
            "/v1/chat/completions", content=content, headers={"content-type": "application/json"}
        )
    assert response.status_code == 400
    assert "more than 131072 names, objects and lists" in response.json()["error"]["message"]


ROUTES = {
    "chat": (chat, "chat_logprobs", "/v1/chat/completions", {"messages": USER, "logprobs": True, "top_logprobs": 20}),
    "response": (
        responses,
        "chat_logprobs",
        "/v1/responses",
        {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 20},
    ),
    "completion": (completions.CompletionLogprobsParts, "part", "/v1/completions", {"prompt": "hi", "logprobs": 20}),
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("num_tokens", "is_beside"), [(2, False), (100, True)])
async def test_large_answers_are_written_beside_others(monkeypatch, route, num_tokens, is_beside):
    place, name, path, fields = ROUTES[route]
    write, threads = getattr(place, name), set()

    def noting(*arguments, **options):
        threads.add(threading.get_ident())
        return write(*arguments, **options)

    monkeypatch.setattr(place, name, noting)
    service = Service([*tokens("Hello world" * 30)[:num_tokens], FinishReason.STOP])
    limit = "max_output_tokens" if route == "response" else "max_tokens"
    response = await service.post(path, {"model": MODEL, limit: 150} | fields)
    assert response.status_code == 200
    assert (threads == {threading.get_ident()}) == (not is_beside)
