"""vLLM's fields of requests and keys of answers, each with an effect that a client can see."""

import json

import numpy as np
import pytest

from service.engine.request import FinishReason
from service.text.tokenizer import Tokenizer
from tests.api.scripted_engine import END, MAX_MODEL_LEN, MODEL, TEMPLATE, TOKENIZER, Service, StopToken, tokens
from tests.api.test_chat import events
from tests.text.small_tokenizers import outside_metaspace

pytestmark = pytest.mark.anyio

TURN = TOKENIZER.backend.token_to_id("<|turn|>")
BOTH = pytest.mark.parametrize("ask", [Service.chat, Service.complete])


def text_of(answer):
    choice = answer.json()["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


@BOTH
async def test_special_tokens_are_left_out_of_the_text_unless_they_are_kept(ask):
    service = Service([*tokens("a"), TURN, *tokens("b"), END, FinishReason.STOP])
    assert text_of(await ask(service)) == "ab"
    kept = await ask(service, skip_special_tokens=False, spaces_between_special_tokens=False)
    assert text_of(kept) == "a<|turn|>b<|end|>"


async def test_kept_special_tokens_have_their_places_among_the_logprobs():
    service = Service([*tokens("a"), TURN, *tokens("b"), FinishReason.STOP])
    choice = (await service.complete(skip_special_tokens=False, logprobs=0)).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["a", "<|turn|>", "b", "<|end|>"]
    assert [choice["text"][offset:] for offset in logprobs["text_offset"]] == ["a<|turn|>b", "<|turn|>b", "b", ""]


async def test_special_tokens_cannot_be_kept_by_a_tokenizer_whose_tokens_have_no_text_of_their_own():
    service = Service(model={"tokenizer": Tokenizer(outside_metaspace()), "chat_template": None})
    error = (await service.complete([1, 2], skip_special_tokens=False)).json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "skip_special_tokens")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"skip_special_tokens": False, "spaces_between_special_tokens": True}, "spaces_between_special_tokens"),
        ({"skip_special_tokens": False, "echo": True}, "skip_special_tokens"),
        ({"truncate_prompt_tokens": 4, "echo": True}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": True}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncation_side": "middle"}, "truncation_side"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"bad_words": [""]}, "bad_words[0]"),
        ({"bad_words": "a"}, "bad_words"),
        ({"bad_words": ["a"] * 65}, "bad_words"),
        ({"bad_words": ["a"], "structured_outputs": {"regex": "a+"}}, "bad_words"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "stream": True}, "max_tokens"),
        ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
        ({"cache_salt": 1}, "cache_salt"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(fields, param):
    response = await Service().complete(**fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_spaces_between_special_tokens_mean_nothing_where_there_are_none():
    for value in (True, False, None):
        assert (await Service().complete(spaces_between_special_tokens=value)).status_code == 200


async def test_tokens_can_be_named_by_their_ids():
    expected = [f"token_id:{token_id}" for token_id in tokens("Hello world")]
    fields = {"return_tokens_as_token_ids": True}
    text = (await Service().complete(logprobs=1, **fields)).json()["choices"][0]["logprobs"]
    assert text["tokens"] == [*expected, f"token_id:{END}"]
    assert [list(top) for top in text["top_logprobs"]] == [[name] for name in text["tokens"]]
    chat = (await Service().chat(logprobs=True, top_logprobs=1, **fields)).json()["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in chat] == expected
    assert [entry["top_logprobs"][0]["token"] for entry in chat] == expected
    assert b"".join(bytes(entry["bytes"]) for entry in chat) == b"Hello world"
    streamed = await Service().complete(logprobs=1, stream=True, **fields)
    assert all(name in streamed.text for name in expected)


async def test_a_prompt_is_cut_to_its_last_tokens_only_if_the_request_says_so():
    service = Service()
    long = "word " * 1000
    assert (await service.complete(long)).json()["error"]["code"] == "context_length_exceeded"
    assert (await service.chat(long)).json()["error"]["code"] == "context_length_exceeded"
    prompt = tokens("Once upon a time")
    for given in (prompt, "Once upon a time"):
        answer = (await service.complete(given, truncate_prompt_tokens=3)).json()
        assert service.engine.last.request.prompt_ids == tuple(prompt[-3:])
        assert answer["usage"]["prompt_tokens"] == 3
    await service.complete(prompt, truncate_prompt_tokens=999)
    assert service.engine.last.request.prompt_ids == tuple(prompt)
    await service.chat(long, truncate_prompt_tokens=20)
    rendered = TEMPLATE.render([{"role": "user", "content": long}])
    assert service.engine.last.request.prompt_ids == tuple(tokens(rendered)[-20:])


async def test_a_prompt_is_cut_at_the_side_that_the_request_names():
    service = Service()
    prompt = tokens("Once upon a time")
    for side, kept in (("left", prompt[-3:]), ("right", prompt[:3])):
        await service.complete(prompt, truncate_prompt_tokens=3, truncation_side=side)
        assert service.engine.last.request.prompt_ids == tuple(kept)
    await service.complete(prompt, truncation_side="right")
    assert service.engine.last.request.prompt_ids == tuple(prompt)
    await service.chat("word " * 1000, truncate_prompt_tokens=20, truncation_side="right")
    rendered = TEMPLATE.render([{"role": "user", "content": "word " * 1000}])
    assert service.engine.last.request.prompt_ids == tuple(tokens(rendered)[:20])


@BOTH
async def test_a_prompt_may_be_cut_to_what_leaves_room_for_one_token(ask):
    service = Service()
    answer = await ask(service, "word " * 1000, truncate_prompt_tokens=-1)
    assert len(service.engine.last.request.prompt_ids) == MAX_MODEL_LEN - 1
    assert answer.json()["usage"]["completion_tokens"] == 1
    short = (await ask(service, "word", truncate_prompt_tokens=-1)).json()["usage"]
    assert short["prompt_tokens"] < 20


@BOTH
async def test_every_chunk_may_count_the_tokens_so_far_without_a_last_chunk_of_counts(ask):
    response = await ask(Service(), stream=True, stream_options={"continuous_usage_stats": True})
    chunks = events(response)[:-1]
    assert all(chunk["choices"] for chunk in chunks)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == len(tokens("Hello world"))


@BOTH
async def test_prefixes_are_shared_by_requests_of_the_same_key_and_the_same_salt(ask):
    salts = []
    for key, fields in (("a", {}), ("a", {"cache_salt": "x"}), ("b", {"cache_salt": "x"}), ("a", {"cache_salt": "y"})):
        salts.append(await salt_of(ask, key, fields))
    assert len(set(salts)) == 4
    assert salts[1] == await salt_of(ask, "a", {"cache_salt": "x"})


async def salt_of(ask, key, fields):
    service = Service(api_keys=("a", "b"))
    client = service.client
    service.client = lambda **options: client(headers={"Authorization": f"Bearer {key}"}, **options)
    assert (await ask(service, **fields)).status_code == 200
    return service.engine.last.request.cache_salt


@BOTH
async def test_an_answer_names_the_system_that_made_it_in_streams_too(ask):
    assert (await ask(Service())).json()["system_fingerprint"] == "fp_1"
    streamed = (await ask(Service(), stream=True)).text
    assert streamed.count('"system_fingerprint":"fp_1"') == streamed.count("data: {")


async def test_a_null_of_an_answer_can_be_sent_back():
    service = Service()
    message = (await service.chat()).json()["choices"][0]["message"]
    assert message["refusal"] is None
    messages = [{"role": "user", "content": "hi"}, message, {"role": "user", "content": "more"}]
    answer = await service.post("/v1/chat/completions", {"model": MODEL, "messages": messages})
    assert answer.status_code == 200


@BOTH
async def test_bad_words_constrain_each_sequence_on_its_own(ask):
    service = Service()
    await ask(service, n=2, bad_words=["Hello world", "x"])
    first, second = (stream.request.constraint for stream in service.engine.streams)
    assert first is not second
    excluded = np.zeros(64, np.uint32)
    for token_id in tokens("Hello world")[:-1]:
        first.accept(token_id)
    for constraint, is_allowed in ((first, False), (second, True)):
        constraint.fill_mask(excluded)
        last = tokens("Hello world")[-1]
        assert bool(excluded[last // 32] >> (last % 32) & 1) == is_allowed
    await ask(service, bad_words=[])
    assert service.engine.last.request.constraint is None


@pytest.mark.parametrize("script", [tokens("Hello"), [FinishReason.STOP], [[*tokens("Hello")]]])
async def test_no_tokens_at_all_score_the_prompt(script):
    service = Service(script)
    prompt = tokens("Once upon")
    answer = (await service.complete(prompt, max_tokens=0, echo=True, logprobs=2)).json()
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Once upon", "length")
    assert len(choice["logprobs"]["tokens"]) == len(prompt)
    assert answer["usage"]["completion_tokens"] == 0
    assert service.engine.last.request.max_tokens == 1
    plain = (await service.complete(prompt, max_tokens=1, echo=True, logprobs=2)).json()["choices"][0]
    for field, entries in choice["logprobs"].items():
        assert plain["logprobs"][field][: len(prompt)] == entries


async def test_a_chat_has_at_least_one_token():
    error = (await Service().chat(max_tokens=0)).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "max_tokens")


@pytest.mark.parametrize("fields", [{}, {"logprobs": 2}, {"logprobs": 0, "n": 2}, {"return_token_ids": True}])
async def test_scores_are_streamed_as_they_are_answered(fields):
    service = Service(tokens("Hello"))
    asked = {"prompt": tokens("Once upon"), "max_tokens": 0, "echo": True, "seed": 1} | fields
    whole = (await service.complete(**asked)).json()
    response = await service.complete(**asked, stream=True, stream_options={"include_usage": True})
    *chunks, last = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    assert last["usage"] == whole["usage"]
    for choice in whole["choices"]:
        [part] = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        unasked = {"prompt_logprobs", *(name for name in ("prompt_token_ids", "token_ids") if choice[name] is None)}
        assert part == {name: value for name, value in choice.items() if name not in unasked}


@BOTH
@pytest.mark.parametrize(
    ("end", "fields", "expected"),
    [
        (FinishReason.STOP, {}, None),
        (FinishReason.LENGTH, {"stop": "never", "stop_token_ids": [TURN]}, None),
        (StopToken(TURN), {"stop_token_ids": [TURN]}, TURN),
        (StopToken(TURN), {"stop_token_ids": [TURN], "stop": ["never"]}, TURN),
        (FinishReason.STOP, {"stop_token_ids": [TURN, END]}, None),
        (FinishReason.STOP, {"stop_token_ids": [END], "ignore_eos": True}, END),
        (FinishReason.STOP, {"stop": ["x", " wor"]}, " wor"),
        (FinishReason.STOP, {"stop": ["orld", "world"], "include_stop_str_in_output": True}, "world"),
    ],
)
async def test_a_choice_names_the_stop_of_the_request_that_ended_it(ask, end, fields, expected):
    service = Service([*tokens("Hello world"), end])
    [choice] = (await ask(service, **fields)).json()["choices"]
    assert choice["stop_reason"] == expected
    chunks = [chunk["choices"][0] for chunk in events(await ask(service, stream=True, **fields))[:-1]]
    assert [chunk["stop_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + [expected]


async def test_what_a_request_does_not_ask_for_is_null():
    chat, completion = (await Service().chat()).json(), (await Service().complete()).json()
    assert (chat["prompt_token_ids"], chat["prompt_logprobs"], chat["choices"][0]["token_ids"]) == (None, None, None)
    [choice] = completion["choices"]
    assert (choice["prompt_token_ids"], choice["prompt_logprobs"], choice["token_ids"]) == (None, None, None)
