"""The token ids of /render are those that an answer would continue."""

import pytest

from tests.api.scripted_engine import MODEL, Service, tokens
from tests.api.test_tools import WEATHER, service_of

pytestmark = pytest.mark.anyio

CHAT = {
    "model": MODEL,
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi é🙂"}],
    "max_tokens": 4,
}


async def test_a_chat_has_the_tokens_of_its_answer():
    service = Service()
    served = (await service.post("/v1/chat/completions", {**CHAT, "return_token_ids": True})).json()
    answer = await service.post("/v1/chat/completions/render", CHAT, headers={"x-request-id": "abc-1"})
    rendered = answer.json()
    assert rendered["token_ids"] == served["prompt_token_ids"] == list(service.engine.last.request.prompt_ids)
    assert rendered["features"] is None
    assert rendered["sampling_params"]["max_tokens"] == 4
    assert rendered["request_id"] == "chatcmpl-abc-1"
    assert len(service.engine.streams) == 1  # that of the answer


async def test_a_message_has_the_tokens_of_its_answer():
    service = Service()
    body = {"model": MODEL, "system": "Be brief.", "messages": [{"role": "user", "content": "hi é🙂"}], "max_tokens": 4}
    await service.post("/v1/messages", body)
    served = list(service.engine.last.request.prompt_ids)
    answer = await service.post("/v1/messages/render", body, headers={"x-request-id": "abc-1"})
    assert (answer.json()["token_ids"], answer.json()["request_id"]) == (served, "msg_abc-1")
    assert answer.json()["sampling_params"]["max_tokens"] == 4
    assert len(service.engine.streams) == 1
    refused = await service.post("/v1/messages/render", body | {"max_tokens": 0})
    assert (refused.status_code, "max_tokens" in refused.json()["error"]["message"]) == (400, True)


async def test_a_chat_with_tools_has_the_tokens_of_its_answer():
    service = service_of("Fine.")
    chat = {**CHAT, "tools": [WEATHER]}
    served = (await service.post("/v1/chat/completions", {**chat, "return_token_ids": True})).json()
    rendered = (await service.post("/v1/chat/completions/render", chat)).json()
    assert rendered["token_ids"] == served["prompt_token_ids"]
    without = (await service.post("/v1/chat/completions/render", CHAT)).json()
    assert without["token_ids"] != rendered["token_ids"]


@pytest.mark.parametrize("prompt", ["Once upon", tokens("Once"), ["a", "b c"]])
async def test_a_completion_has_the_tokens_of_each_prompt(prompt):
    service = Service()
    served = (await service.complete(prompt, return_token_ids=True)).json()["choices"]
    rendered = (await service.post("/v1/completions/render", {"model": MODEL, "prompt": prompt})).json()
    assert [request["token_ids"] for request in rendered] == [choice["prompt_token_ids"] for choice in served]
    assert {request["sampling_params"]["max_tokens"] for request in rendered} == {16}
    assert len({request["request_id"] for request in rendered}) == len(rendered)


async def test_a_response_has_the_tokens_of_its_answer():
    service = Service()
    body = {"model": MODEL, "instructions": "Be brief.", "input": "hi"}
    assert (await service.post("/v1/responses", body)).status_code == 200
    rendered = (await service.post("/v1/responses/render", body)).json()
    assert rendered["token_ids"] == list(service.engine.last.request.prompt_ids)


async def test_a_long_body_has_the_tokens_of_its_answer():
    service = Service([], model={"max_model_len": 100_000})
    text = "many words " * 4000
    served = tokens(f"<|turn|>user:{text}<|turn|>assistant:")
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
    assert (await service.post("/v1/chat/completions/render", body)).json()["token_ids"] == served
    served = (await service.post("/tokenize", {"prompt": text})).json()["tokens"]
    [rendered] = (await service.post("/v1/completions/render", {"model": MODEL, "prompt": text})).json()
    assert rendered["token_ids"] == served
    rendered = (await service.post("/v1/responses/render", {"model": MODEL, "input": text})).json()
    assert rendered["token_ids"] == tokens(f"<|turn|>user:{text}<|turn|>assistant:")


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions/render", {"messages": [{"role": "user", "content": "refuse"}]}, "messages"),
        ("/v1/chat/completions/render", {"messages": [{"role": "user", "content": "word " * 500}]}, "messages"),
        ("/v1/completions/render", {"prompt": "word " * 500}, "prompt"),
        ("/v1/completions/render", {"prompt": [10**6]}, "prompt[0]"),
        ("/v1/responses/render", {"input": "word " * 500}, "input"),
    ],
)
async def test_what_no_answer_would_be_given_to_is_refused(path, fields, param):
    answer = await Service().post(path, {"model": MODEL, **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_what_is_ignored_is_named():
    answer = await Service().post("/v1/chat/completions/render", {**CHAT, "reasoning_effort": "low"})
    assert answer.headers["x-levserve-ignored"] == "reasoning_effort"
