"""Fields of a request about its prompt: each is applied by the template, or named in the answer."""

import json

import pytest

from service.text.chat_template import ChatTemplate
from tests.api.scripted_engine import MODEL, TOKENIZER, Service

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json"}
PLAIN = (
    "{% for m in messages %}<|turn|>{{ m.role }}:{{ m.content | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant:{% endif %}"
)
SWITCH = PLAIN + "{% if enable_thinking is defined and not enable_thinking %}<no>{% endif %}{{ style }}{{ bos_token }}"
DEGREES = "{{ reasoning_effort | default('usual') }}|" + PLAIN
HIDDEN = "{% for m in messages %}{{ m.role }}{% endfor %}"
USER = [{"role": "user", "content": "hi"}]
BEGUN = [*USER, {"role": "assistant", "content": " It is  "}]


def service_of(source):
    return Service(model={"chat_template": ChatTemplate(source, {"bos_token": "<|begin|>"})})


async def prompt_of(source, messages=USER, **fields):
    """The prompt of a chat, which is that of /tokenize too."""
    service = service_of(source)
    body = {"model": MODEL, "messages": messages} | fields
    answer = await service.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    ids = service.engine.last.request.prompt_ids
    assert (await service.post("/tokenize", body)).json()["tokens"] == list(ids)
    return TOKENIZER.backend.decode(ids, skip_special_tokens=False)


async def ignored_of(source, **fields):
    answer = await service_of(source).post("/v1/chat/completions", {"model": MODEL, "messages": USER} | fields)
    assert answer.status_code == 200, answer.text
    return answer.headers.get("x-levserve-ignored")


async def refusal_of(source, messages=USER, path="/v1/chat/completions", **fields):
    answer = await service_of(source).post(path, {"model": MODEL, "messages": messages} | fields)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


async def test_the_prompt_ends_with_the_beginning_of_an_answer_unless_told_otherwise():
    assert await prompt_of(PLAIN) == "<|turn|>user:hi<|end|><|turn|>assistant:"
    assert await prompt_of(PLAIN, add_generation_prompt=False) == "<|turn|>user:hi<|end|>"


async def test_the_last_message_is_continued_with_the_spaces_that_the_template_keeps():
    """As in transformers, a template that cuts the space around texts does so here too."""
    for source, text in ((PLAIN, "It is"), (PLAIN.replace(" | trim", ""), " It is  ")):
        got = await prompt_of(source, BEGUN, add_generation_prompt=False, continue_final_message=True)
        assert got == f"<|turn|>user:hi<|end|><|turn|>assistant:{text}"


@pytest.mark.parametrize(
    ("source", "fields"),
    [
        (PLAIN, {"continue_final_message": True}),
        (HIDDEN, {"continue_final_message": True, "add_generation_prompt": False}),
    ],
)
async def test_a_message_that_cannot_be_continued_is_refused(source, fields):
    error = await refusal_of(source, BEGUN, **fields)
    assert (error["code"], error["param"]) == ("invalid_value", "continue_final_message")


async def test_the_template_gets_the_variables_that_it_reads():
    got = await prompt_of(SWITCH, chat_template_kwargs={"enable_thinking": False, "style": "short"})
    assert got.endswith("assistant:<no>short<|begin|>")
    assert "<no>" not in await prompt_of(SWITCH, chat_template_kwargs={"enable_thinking": True})


@pytest.mark.parametrize("name", ["thinking", "messages", "bos_token", "raise_exception", "range", "tools", "x" * 999])
async def test_a_variable_that_the_template_does_not_read_is_not_passed_to_it_and_named(name):
    assert await ignored_of(SWITCH, chat_template_kwargs={name: 1}) == f"chat_template_kwargs.{name[:64]}"
    assert await prompt_of(SWITCH, chat_template_kwargs={name: 1}) == await prompt_of(SWITCH)


async def test_an_effort_is_passed_to_a_template_that_reads_it():
    assert (await prompt_of(DEGREES)).startswith("usual|")
    assert (await prompt_of(DEGREES, reasoning_effort="high")).startswith("high|")
    variables = {"reasoning_effort": "low"}
    assert (await prompt_of(DEGREES, reasoning_effort="high", chat_template_kwargs=variables)).startswith("low|")
    assert (await prompt_of(DEGREES, reasoning_effort="max")).startswith("high|")
    assert (await prompt_of("{# 'max' #}" + DEGREES, reasoning_effort="max")).startswith("max|")
    assert (await prompt_of(DEGREES, reasoning_effort="none")).startswith("usual|")
    assert await ignored_of(DEGREES, reasoning_effort="none") == "reasoning_effort"


OFF = [
    {"reasoning_effort": "none"},
    {"reasoning": {"effort": "none"}},
    {"reasoning": {"enabled": False}},
    {"reasoning": {"max_tokens": 0}},
    {"thinking": {"type": "disabled"}},
    {"thinking": False},
    {"enable_thinking": False},
    {"chat_template_kwargs": {"enable_thinking": False}},
]
ON = [
    {"reasoning_effort": "high"},
    {"reasoning": {"effort": "medium"}},
    {"reasoning": {"max_tokens": 2000}},
    {"thinking": {"type": "enabled", "budget_tokens": 2000}},
    {"thinking": {"type": "adaptive"}},
    {"enable_thinking": True},
    {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
]


@pytest.mark.parametrize(("fields", "is_off"), [(f, True) for f in OFF] + [(f, False) for f in ON])
async def test_every_shape_of_a_level_of_thinking_turns_the_templates_switch(fields, is_off):
    assert ("<no>" in await prompt_of(SWITCH, **fields)) == is_off
    assert await ignored_of(SWITCH, **fields) is None


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"reasoning_effort": "anything"}, "reasoning_effort"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"thinking": {"type": "enabled"}}, "thinking"),
        ({"enable_thinking": False}, "enable_thinking"),
    ],
)
async def test_a_level_of_thinking_is_named_where_the_template_has_none(fields, path):
    assert await ignored_of(PLAIN, **fields) == path
    assert await prompt_of(PLAIN, **fields) == await prompt_of(PLAIN)


@pytest.mark.parametrize(
    "fields",
    [
        {"add_generation_prompt": False},
        {"continue_final_message": True},
        {"chat_template_kwargs": {"style": 1}},
        {"reasoning_effort": "none"},
    ],
)
async def test_a_text_to_tokenize_has_no_template(fields):
    answer = await service_of(PLAIN).post("/tokenize", {"prompt": "hi"} | fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(fields)))
    neutral = {"add_generation_prompt": True, "chat_template_kwargs": {}, "reasoning_effort": None, "tools": []}
    assert (await service_of(PLAIN).post("/tokenize", {"prompt": "hi"} | neutral)).status_code == 200


async def test_a_hostile_variable_stays_within_the_limits_of_the_template():
    for value in ({"__class__": 1}, "\ud800", [[[]]] * 100):
        body = {"model": MODEL, "messages": USER, "chat_template_kwargs": {"style": value}}
        async with service_of(SWITCH).client() as client:
            answer = await client.post("/v1/chat/completions", content=json.dumps(body), headers=JSON)
        assert answer.status_code in (200, 400)
    assert (await prompt_of(SWITCH, chat_template_kwargs={"style": "{{ 7 * 7 }}"})).count("49") == 0
