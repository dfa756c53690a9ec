"""gpt-oss over the API: channels become reasoning, content and calls on each route, and go back to its template."""

import numpy as np
import pytest

from service.engine.request import FinishReason
from service.text.chat_template import ChatTemplate
from service.text.formats.families import HARMONY as FORMAT
from service.text.formats.reader import mark_ids
from service.text.tokenizer import Tokenizer
from tests.api.scripted_engine import MODEL, TOKENIZER, Service
from tests.api.test_chat import events
from tests.text.small_tokenizers import byte_level

pytestmark = pytest.mark.anyio

# With the quirks of the real one: one call of a message, no content beside it and thinking, results by the last.
TEMPLATE = (
    "{% set last = namespace(name=none) %}<|start|>system<|message|>"
    "Reasoning: {{ reasoning_effort or 'medium' }}<|end|>"
    "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}{% for m in messages %}"
    "{% if m.role == 'assistant' %}{% if m.tool_calls %}"
    "{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}"
    "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "{% set c = m.tool_calls[0].function %}{% set last.name = c.name %}<|start|>assistant to=functions.{{ c.name }}"
    "<|channel|>commentary json<|message|>{{ c.arguments | tojson }}<|call|>"
    "{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}"
    "{% elif m.role == 'tool' %}{% if last.name is none %}{{ raise_exception('no call') }}{% endif %}"
    "<|start|>functions.{{ last.name }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("f", "g")]
THINKING = "<|channel|>analysis<|message|>We add.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>It is 4."
CALLED = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "ü"}'


def _tokenizer():
    backend = byte_level(adds_begin=True)
    backend.add_special_tokens(list(FORMAT.marks))
    return Tokenizer(backend, special_tokens=TOKENIZER.special_tokens)


HARMONY = _tokenizer()


def service_of(text):
    ends = frozenset(mark_ids(FORMAT, HARMONY)[mark] for mark in FORMAT.ends)
    template = ChatTemplate(TEMPLATE, HARMONY.special_tokens)
    model = {"chat_template": template, "tokenizer": HARMONY, "stop_ids": ends, "max_model_len": 2048}
    model["vocab_size"] = HARMONY.vocab_size
    return Service([*HARMONY.encode(text, add_special_tokens=False), FinishReason.STOP], model=model)


def prompt_of(service):
    return "".join(HARMONY.token_bytes_of(i).decode() for i in service.engine.last.request.prompt_ids)


async def answer_of(service, path="/v1/chat/completions", **fields):
    answer = await service.post(path, {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_channels_are_parts_of_the_message_whole_and_in_streams():
    answer = await answer_of(service_of(THINKING + FINAL))
    message = answer["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("We add.", "It is 4.")
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    chunks = events(await service_of(THINKING + FINAL).chat(stream=True))[:-1]
    deltas: list[dict[str, str]] = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "We add."
    assert "".join(delta.get("content", "") for delta in deltas) == "It is 4."


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_call_is_a_call_on_each_route(choice):
    service = service_of(THINKING + CALLED)
    answer = await answer_of(service, tools=TOOLS, tool_choice=choice)
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    [call] = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"a": "ü"}'}
    constraint = service.engine.last.request.constraint
    for token_id in HARMONY.encode(THINKING + CALLED, add_special_tokens=False):
        constraint.accept(token_id)

    response = await service_of(THINKING + CALLED).post(
        "/v1/responses", {"model": MODEL, "input": "hi", "tools": [{"type": "function", **TOOLS[0]["function"]}]}
    )
    assert [item["type"] for item in response.json()["output"]] == ["reasoning", "function_call"]
    tool = {"name": "f", "input_schema": {"type": "object"}}
    message = await answer_of(service_of(THINKING + CALLED), "/v1/messages", tools=[tool], max_tokens=100)
    assert message["content"][-1]["input"] == {"a": "ü"}


@pytest.mark.parametrize("tools", [{}, {"tools": TOOLS}], ids=["no tools", "tools"])
@pytest.mark.parametrize("header", ["<|channel|>final", "<|channel|>final <|constrain|>json"])
async def test_a_schema_holds_the_body_of_the_final_message(header, tools):
    text = f'{THINKING}{header}<|message|>{{"a": 1}}'
    service = service_of(text)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]} | {
        "additionalProperties": False
    }
    stated = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    message = (await answer_of(service, response_format=stated, stop=["zz"], **tools))["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("We add.", '{"a": 1}')
    constraint = service.engine.last.request.constraint
    *body, last = HARMONY.encode(text, add_special_tokens=False)
    for token_id in body:
        constraint.accept(token_id)
    words = np.zeros((HARMONY.vocab_size + 31) // 32, np.uint32)
    constraint.fill_mask(words)
    assert words[last // 32] >> last % 32 & 1
    assert not any(words[i // 32] >> i % 32 & 1 for i in service.readiness.model.stop_ids)


async def test_marks_are_shown_where_special_tokens_are_asked_for():
    text, shown = THINKING + FINAL, {"skip_special_tokens": False, "spaces_between_special_tokens": False}
    message = (await answer_of(service_of(text), **shown))["choices"][0]["message"]
    assert (message["content"], "reasoning" in message) == (text, False)
    called = await answer_of(service_of(THINKING + CALLED), tools=TOOLS, **shown)
    assert called["choices"][0]["finish_reason"] == "tool_calls"


async def test_an_answer_that_was_cut_in_a_header_shows_no_mark():
    answer = await answer_of(service_of("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>fin"))
    assert answer["choices"][0]["message"]["content"] is None


async def test_a_history_of_calls_goes_back_as_the_template_writes_it():
    calls = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": '{"a": 1}'}} for name in ("f", "g")
    ]
    service = service_of(FINAL)
    await answer_of(
        service,
        tools=TOOLS,
        reasoning_effort="low",
        messages=[
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "I look.", "reasoning": "Hm.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "f", "content": "one"},
            {"role": "tool", "tool_call_id": "g", "content": "two"},
        ],
    )
    assert prompt_of(service).removeprefix("<|begin|>") == (
        "<|start|>system<|message|>Reasoning: low<|end|>f;g;<|start|>user<|message|>hi<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Hm.\nI look.<|end|>"
        '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>'
        '<|start|>functions.f to=assistant<|channel|>commentary<|message|>"one"<|end|>'
        '<|start|>assistant to=functions.g<|channel|>commentary json<|message|>{"a": 1}<|call|>'
        '<|start|>functions.g to=assistant<|channel|>commentary<|message|>"two"<|end|><|start|>assistant'
    )
