"""A stream adds up to the whole answer: text, thinking, calls, log-probabilities, reason and usage, however cut."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.request import FinishReason
from service.text.chat_template import ChatTemplate
from service.text.tokenizer import Tokenizer
from tests.api.scripted_engine import MODEL, TOKENIZER, Service
from tests.api.test_chat import events
from tests.api.test_thinking import TEMPLATES
from tests.api.test_tools import TOOLS, merged
from tests.text.small_tokenizers import metaspace

BYTE_FALLBACK = Tokenizer(metaspace(), special_tokens={"bos_token": "<s>", "eos_token": "</s>"})
TOKENIZERS = {"byte_level": TOKENIZER, "byte_fallback": BYTE_FALLBACK}

# An emoji of several characters, a combining accent, CJK, a real replacement character, and beginnings of markers.
WORDS = ["Wait.\n", " ", "\n", "the", "👩‍👩‍👧", "🌍", "e\u0301", "世界", "한", "\ufffd", "<", "<tool_", "</think", "ß"]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm 🌍 e\u0301"}}\n</tool_call>'
CLOCK = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'

answers = st.tuples(
    st.sampled_from(["", "", "<think>\nHm 🌍 世\n</think>\n\n"]),
    st.lists(st.sampled_from(WORDS), max_size=8).map("".join),
    st.sampled_from(["", CALL, CALL + "\n" + CLOCK, CALL[:-20]]),
).map("".join)


@st.composite
def scripts(draw):
    """Draw the tokens of an answer, in events that end anywhere, and the options of a request for it."""
    tokenizer, text = TOKENIZERS[draw(st.sampled_from(sorted(TOKENIZERS)))], draw(answers)
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    borders = draw(st.one_of(st.just(range(len(token_ids))), st.sets(st.integers(0, len(token_ids)))))
    cuts = sorted({0, *borders, len(token_ids)})
    # Parts of the text at any place, whole characters of it or not even whole words.
    stops = []
    for start in draw(st.lists(st.integers(0, len(text)), max_size=2)):
        stops += [text[start : start + draw(st.integers(1, 12))]]
    fields = {
        "stop": [stop for stop in stops if stop],
        "include_stop_str_in_output": draw(st.booleans()),
        "return_token_ids": True,
        "seed": 1,
    }
    reason = draw(st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]))
    return tokenizer, [*(token_ids[start:end] for start, end in pairwise(cuts)), reason], fields


def new_service(tokenizer):
    template = ChatTemplate(TEMPLATES["closed"], tokenizer.special_tokens)
    model = {"tokenizer": tokenizer, "vocab_size": tokenizer.vocab_size, "max_model_len": 4096}
    return Service(model=model | {"chat_template": template})


SERVICES = {tokenizer: new_service(tokenizer) for tokenizer in TOKENIZERS.values()}


def service_of(tokenizer, script):
    service = SERVICES[tokenizer]
    service.engine.script = script
    return service


async def whole_and_chunks(service, path, body):
    """Return the whole answer, and the chunks of its stream, the last of which has the usage."""
    body = {"model": MODEL, **body}
    whole = await service.post(path, body)
    assert whole.status_code == 200, whole.text
    streamed = await service.post(path, body | {"stream": True, "stream_options": {"include_usage": True}})
    *chunks, done = events(streamed)
    assert done == "data: [DONE]"
    return whole.json(), chunks


def parts_of(chunks, name):
    """Return one field of the only choice, of each chunk that has it."""
    return [choice[name] for chunk in chunks for choice in chunk["choices"] if choice.get(name) is not None]


@settings(max_examples=30)
@given(scripts())
def test_of_a_chat(drawn):
    tokenizer, script, fields = drawn
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, "logprobs": True, "top_logprobs": 1}
    service = service_of(tokenizer, script)
    whole, [*chunks, last] = asyncio.run(whole_and_chunks(service, "/v1/chat/completions", body | fields))
    [choice] = whole["choices"]
    message, reason, token_ids = merged(chunks)
    expected = choice["message"]
    assert message["content"] == (expected["content"] or "")
    for name in ("reasoning", "reasoning_content"):
        assert "".join(delta.get(name, "") for delta in parts_of(chunks, "delta")) == expected.get(name, "")
    calls = expected.get("tool_calls", [])
    assert [call["function"] for call in message["tool_calls"]] == [call["function"] for call in calls]
    assert (reason, token_ids) == (choice["finish_reason"], choice["token_ids"])
    assert [*parts_of(chunks, "stop_reason"), None][0] == choice["stop_reason"]
    entries = [entry for part in parts_of(chunks, "logprobs") for entry in part["content"]]
    assert entries == choice["logprobs"]["content"]
    assert (last["choices"], last["usage"]) == ([], whole["usage"])


@settings(max_examples=30)
@given(scripts())
def test_of_a_completion(drawn):
    tokenizer, script, fields = drawn
    body = {"prompt": "the", "logprobs": 1, "echo": True, "max_tokens": 2000}
    service = service_of(tokenizer, script)
    whole, [*chunks, last] = asyncio.run(whole_and_chunks(service, "/v1/completions", body | fields))
    [choice] = whole["choices"]
    assert "".join(parts_of(chunks, "text")) == choice["text"]
    assert parts_of(chunks, "finish_reason") == [choice["finish_reason"]]
    assert [*parts_of(chunks, "stop_reason"), None][0] == choice["stop_reason"]
    assert [token_id for part in parts_of(chunks, "token_ids") for token_id in part] == choice["token_ids"]
    for name, values in choice["logprobs"].items():
        assert [value for part in parts_of(chunks, "logprobs") for value in part[name]] == values
    assert (last["choices"], last["usage"]) == ([], whole["usage"])


@settings(max_examples=30)
@given(scripts())
def test_where_the_tokens_arrive_together_changes_no_answer(drawn):
    tokenizer, [*steps, reason], fields = drawn
    one_by_one = [*(token_id for step in steps for token_id in step), reason]
    body = {"messages": [{"role": "user", "content": "hi"}], "model": MODEL, "tools": TOOLS, "logprobs": True}

    async def answers():
        for script in ([*steps, reason], one_by_one):
            answer = (await service_of(tokenizer, script).post("/v1/chat/completions", body | fields)).json()
            for call in answer["choices"][0]["message"].get("tool_calls", ()):
                del call["id"]
            yield answer["choices"], answer["usage"]

    async def both():
        return [answer async for answer in answers()]

    together, apart = asyncio.run(both())
    assert together == apart


def test_the_families_differ_in_how_a_character_is_cut():
    assert len(BYTE_FALLBACK.encode("🌍", add_special_tokens=False)) >= 4
    assert pytest.approx(1, abs=3) == len(TOKENIZER.encode("🌍", add_special_tokens=False))
