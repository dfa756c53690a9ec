import importlib.metadata
import json

import pytest

from service.text.sandbox import TemplateSandbox
from tests.api.scripted_engine import MAX_MODEL_LEN, MODEL, TEMPLATE, TOKENIZER, Service, tokens

TOOL = {"type": "function", "function": {"name": "f"}}

pytestmark = pytest.mark.anyio


async def post(path, body, **options):
    async with Service([], **options).client() as client:
        return await client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})


async def test_a_prompt_has_the_tokens_that_a_completion_of_it_has():
    answer = (await post("/tokenize", {"model": MODEL, "prompt": "Hello world"})).json()
    ids = TOKENIZER.encode("Hello world", add_special_tokens=True)
    assert answer == {"count": len(ids), "max_model_len": answer["max_model_len"], "tokens": ids, "token_strs": None}
    assert answer["max_model_len"] > 0


async def test_token_strings_come_if_requested():
    answer = (await post("/tokenize", {"prompt": "Hello", "return_token_strs": True})).json()
    assert answer["token_strs"] == [TOKENIZER.backend.id_to_token(i) for i in answer["tokens"]]


async def test_messages_have_the_tokens_of_their_chat():
    answer = (await post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]})).json()
    assert answer["tokens"] == tokens("<|turn|>user:hi<|turn|>assistant:")


@pytest.mark.parametrize("text", ["Hello world", "", "é漢字 🙂", "<|turn|>user:hi<|end|>"])
async def test_detokenizing_gives_the_text_back_special_tokens_included(text):
    answer = await post("/detokenize", {"tokens": tokens(text)})
    assert answer.json() == {"prompt": text}


async def test_a_text_longer_than_the_context_is_counted_all_the_same():
    answer = (await post("/tokenize", {"prompt": "word " * 5000})).json()
    assert answer["count"] > answer["max_model_len"]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, 400, "messages"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"prompt": "a", "tools": [{}]}, 400, "tools[0].type"),
        ("/tokenize", {"prompt": "a", "tools": [TOOL]}, 400, "tools"),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "tools": [TOOL]}, 400, "tools"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, 400, "tokens[1]"),
        ("/detokenize", {"tokens": [1, 2**31 - 1]}, 400, "tokens[1]"),
        ("/detokenize", {"tokens": [True]}, 400, "tokens[0]"),
        ("/detokenize", {"tokens": "ab"}, 400, "tokens"),
        ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(path, body, status, param):
    answer = await post(path, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


async def test_a_model_without_a_template_takes_no_messages():
    answer = await post("/tokenize", {"messages": [{"role": "user", "content": "a"}]}, model={"chat_template": None})
    assert answer.status_code == 400
    assert "no chat template" in answer.json()["error"]["message"]


async def test_the_tokenizer_is_described_by_its_special_tokens_and_its_template():
    async with Service([]).client() as client:
        answer = (await client.get("/tokenizer_info")).json()
    assert (answer["bos_token"], answer["eos_token"]) == ("<|begin|>", None)
    assert answer["model_max_length"] == MAX_MODEL_LEN
    rendered = (
        TemplateSandbox().from_string(answer["chat_template"]).render(messages=[{"role": "user", "content": "x"}])
    )
    assert rendered == TEMPLATE.render([{"role": "user", "content": "x"}])
    async with Service([], model={"chat_template": None}).client() as client:
        assert (await client.get("/tokenizer_info")).json()["chat_template"] is None


async def test_the_version_is_that_of_the_package():
    async with Service([]).client() as client:
        answer = await client.get("/version")
    assert answer.json() == {"version": importlib.metadata.version("levserve")}


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/tokenizer_info"), ("GET", "/version")],
)
async def test_they_need_the_key_if_there_is_one(method, path):
    async with Service([], api_keys=("secret",)).client() as client:
        assert (await client.request(method, path, json={})).status_code == 401
