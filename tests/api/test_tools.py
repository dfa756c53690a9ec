"""Tool calls over the API: OpenAI's shapes, whole and in streams; what does not fit together is refused by name."""

import json
import random
import re

import numpy as np
import pytest

from service.engine.request import FinishReason
from service.text.chat_template import ChatTemplate
from tests.api.scripted_engine import END, TEMPLATE, TOKENIZER, Service, tokens
from tests.api.test_chat import events
from tests.api.test_structured import text_of
from tests.text.formats import samples

pytestmark = pytest.mark.anyio

TEMPLATES = {
    "hermes": "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}<tool_call>{{ messages[-1].content }}",
    "mistral": "{{ tools }}[TOOL_CALLS]",
    "qwen3_coder": "{{ tools }}<tool_call>\n<function=",
    "deepseek_v3": "{{ tools }}<｜tool▁calls▁begin｜>```json",
}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Now.", "parameters": SCHEMA}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]
NAMED = {"type": "function", "function": {"name": "clock"}}
ONE = 'Wait.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm 🌍"}}\n</tool_call>'
TWO = ONE + '\n<tool_call>{"name": "clock", "arguments": {}}</tool_call>'


def service_of(text, *, template="hermes", reason=FinishReason.STOP, **model):
    chat_template = ChatTemplate(TEMPLATES[template], TOKENIZER.special_tokens)
    return Service([*tokens(text), reason], model={"chat_template": chat_template, "max_model_len": 2048} | model)


async def choice_of(service, **fields):
    response = await service.chat(**({"tools": TOOLS} | fields))
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def merged(chunks):
    """Return the message, the finish reason and the tokens of a stream's first choice, as clients add them up."""
    message, reason, token_ids = {"role": None, "content": "", "tool_calls": []}, None, []
    for chunk in chunks:
        [choice] = chunk["choices"]
        delta = choice["delta"]
        message["role"] = delta.get("role", message["role"])
        message["content"] += delta.get("content", "")
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(message["tool_calls"]):
                assert call["function"]["arguments"] == ""
                message["tool_calls"].append(
                    {"id": call["id"], "type": call["type"], "function": dict(call["function"])}
                )
            else:
                assert call.keys() == {"index", "function"}
                message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        reason = choice["finish_reason"] or reason
        token_ids += choice.get("token_ids", [])
    return message, reason, token_ids


async def test_calls_are_returned_in_openais_shape():
    choice = await choice_of(service_of(TWO), return_token_ids=True)
    calls = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": "Wait.\n", "refusal": None}
    assert choice["finish_reason"] == "tool_calls"
    assert choice["token_ids"] == [*tokens(TWO), END]
    assert all(re.fullmatch("call_[0-9a-f]{32}", call.pop("id")) for call in calls)
    assert calls == [
        {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm 🌍"}'}},
        {"type": "function", "function": {"name": "clock", "arguments": "{}"}},
    ]


IN_OTHER_FORMATS = {
    "qwen3_coder": "Wait.\n<tool_call>\n<function=weather>\n<parameter=city>\nUlm 🌍\n</parameter>\n</function>\n"
    "</tool_call>\n<tool_call>\n<function=clock>\n</function>\n</tool_call>",
    "deepseek_v3": "Wait.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
    '{"city": "Ulm 🌍"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>clock\n```json\n{}\n```'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
}


@pytest.mark.parametrize(("template", "text"), IN_OTHER_FORMATS.items())
async def test_calls_of_every_format_are_the_same_whole_and_in_streams(template, text):
    expected = (await choice_of(service_of(TWO)))["message"]
    whole = await choice_of(service_of(text, template=template))
    message, reason, _ = merged(events(await service_of(text, template=template).chat(tools=TOOLS, stream=True))[:-1])
    for found in (whole["message"], message):
        assert found["content"] == expected["content"]
        assert [call["function"] for call in found["tool_calls"]] == [c["function"] for c in expected["tool_calls"]]
    assert whole["finish_reason"] == reason == "tool_calls"


async def test_a_schema_that_a_format_of_elements_cannot_hold_to_is_refused_by_its_path():
    parameters = SCHEMA | {"anyOf": [{"required": ["city"]}]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    assert (await service_of(ONE).chat(tools=[tool], tool_choice="required")).status_code == 200
    refused = await service_of(ONE, template="qwen3_coder").chat(tools=[tool], tool_choice="required")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools[0].function.parameters.anyOf")


async def test_content_is_null_where_there_is_none():
    choice = await choice_of(service_of(TWO.removeprefix("Wait.\n")))
    assert choice["message"]["content"] is None
    assert len({call["id"] for call in choice["message"]["tool_calls"]}) == 2


@pytest.mark.parametrize("function_call", ["auto", {"name": "weather"}, None])
async def test_calls_of_openais_older_functions_have_their_own_shape(function_call):
    functions = {"functions": [WEATHER["function"]], "function_call": function_call}
    whole = (await service_of(ONE).chat(**functions)).json()["choices"][0]
    expected = {"name": "weather", "arguments": '{"city": "Ulm 🌍"}'}
    assert (whole["message"]["function_call"], "tool_calls" in whole["message"]) == (expected, False)
    is_named = isinstance(function_call, dict)
    assert whole["finish_reason"] == ("stop" if is_named else "function_call")
    chunks = events(await service_of(ONE).chat(stream=True, **functions))[:-1]
    deltas = [
        choice["delta"]["function_call"]
        for c in chunks
        for choice in c["choices"]
        if "function_call" in choice["delta"]
    ]
    assert deltas[0] == {"name": "weather", "arguments": ""}
    assert "".join(delta["arguments"] for delta in deltas) == expected["arguments"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]


async def test_text_without_a_call_is_an_ordinary_answer():
    choice = await choice_of(service_of("It is <5 degrees."))
    assert choice["message"]["content"] == "It is <5 degrees."
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("text", [ONE, TWO, TWO.removeprefix("Wait.\n"), "Just text."])
async def test_a_stream_adds_up_to_the_whole_answer(text):
    whole = await choice_of(service_of(text), logprobs=True, return_token_ids=True)
    response = await service_of(text).chat(tools=TOOLS, stream=True, logprobs=True, return_token_ids=True)
    chunks = events(response)[:-1]
    message, reason, token_ids = merged(chunks)
    expected = whole["message"].get("tool_calls", [])
    assert message["content"] == (whole["message"]["content"] or "")
    assert [call["function"] for call in message["tool_calls"]] == [call["function"] for call in expected]
    assert all(call["id"].startswith("call_") for call in message["tool_calls"])
    assert (reason, token_ids) == (whole["finish_reason"], whole["token_ids"])
    logprobs = [c["logprobs"]["content"] for chunk in chunks for c in chunk["choices"] if c["logprobs"]]
    assert [entry for part in logprobs for entry in part] == whole["logprobs"]["content"]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


async def test_arguments_are_streamed_in_pieces():
    chunks = events(await service_of(ONE).chat(tools=TOOLS, stream=True))[:-1]
    pieces = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert pieces[0]["function"] == {"name": "weather", "arguments": ""}
    assert len(pieces) > 4
    assert chunks[-1]["choices"][0]["delta"] == {}


@pytest.mark.parametrize(
    ("text", "reason", "fields", "expected"),
    [
        (ONE, FinishReason.LENGTH, {}, "length"),
        (ONE[:-30], FinishReason.LENGTH, {}, "length"),
        (ONE, FinishReason.STOP, {"tool_choice": "required"}, "tool_calls"),
        (
            '<tool_call>{"name": "clock", "arguments": {}}</tool_call>',
            FinishReason.STOP,
            {"tool_choice": NAMED},
            "stop",
        ),
        (ONE, FinishReason.STOP, {"stop": "Ulm"}, "tool_calls"),
        (ONE, FinishReason.STOP, {"stop": "\n</tool"}, "tool_calls"),
    ],
)
async def test_the_reason_never_hides_that_an_answer_was_cut(text, reason, fields, expected):
    assert (await choice_of(service_of(text, reason=reason), **fields))["finish_reason"] == expected


@pytest.mark.parametrize(
    ("choice", "is_expected"),
    [
        ("required", lambda text: text.startswith("<tool_call>")),
        (NAMED, lambda text: re.fullmatch(r'<tool_call>\n?{"name": "clock", "arguments": {}}\n?</tool_call>', text)),
        ("auto", lambda text: True),
        (None, lambda text: True),
    ],
)
async def test_the_choice_decides_what_the_answer_is_held_to(choice, is_expected):
    service = service_of("x")
    await choice_of(service, tool_choice=choice, parallel_tool_calls=False)
    assert is_expected(text_of(service.engine.last.request.constraint, random.Random(3)))


async def test_without_a_choice_to_call_the_prompt_has_no_tools():
    shown, hidden = service_of("x"), service_of("x")
    await choice_of(shown)
    await choice_of(hidden, tool_choice="none")
    assert '"name": "weather"' in TOKENIZER.decode(shown.engine.last.request.prompt_ids)
    assert '"strict"' not in TOKENIZER.decode(shown.engine.last.request.prompt_ids)
    assert TOKENIZER.decode(hidden.engine.last.request.prompt_ids) == "<tool_call>hi"
    assert hidden.engine.last.request.constraint is None


def allowed(mode, *names):
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_only_allowed_tools_are_called_and_the_prompt_shows_all(mode):
    service = service_of(TWO)
    choice = await choice_of(service, tool_choice=allowed(mode, "clock"))
    assert choice["finish_reason"] == "tool_calls"
    request = service.engine.last.request
    assert "weather" in TOKENIZER.decode(request.prompt_ids)
    called = tokens('<tool_call>{"name": "')
    for token_id in called:
        request.constraint.accept(token_id)
    rest = text_of(request.constraint, random.Random(3))
    assert rest.startswith('clock"')


@pytest.mark.parametrize(("refuses", "expected"), [("", True), ("single tool-calls", False)])
async def test_several_calls_are_left_out_where_the_template_refuses_them(refuses, expected):
    template = ChatTemplate('<|start_header_id|>{{ tools }}"parameters"{# ' + refuses + " #}", {})
    service = service_of("x", chat_template=template)
    await choice_of(service, tool_choice="required")
    constraint = service.engine.last.request.constraint
    for token_id in tokens('{"name": "clock", "parameters": {}}'):
        constraint.accept(token_id)
    words = np.zeros((TOKENIZER.vocab_size + 31) // 32, np.uint32)
    constraint.fill_mask(words)
    [semicolon] = tokens(";")
    assert bool(words[semicolon // 32] >> (semicolon % 32) & 1) is expected


async def test_a_template_that_needs_parameters_gets_empty_ones():
    needs = ChatTemplate("{{ tools[0].function.parameters.properties | length }}{{ tools | tojson }}", {})
    for template, parameters in ((needs, '0[{"type": "function", "function": {"name": "clock", "par'), (None, "")):
        service = service_of("x", **({} if template is None else {"chat_template": template}))
        await choice_of(service, tools=[CLOCK])
        prompt = TOKENIZER.decode(service.engine.last.request.prompt_ids)
        assert prompt.startswith(parameters)
        assert ('"parameters": {"type": "object", "properties": {}}' in prompt) == bool(parameters)


async def test_an_answer_that_calls_nothing_may_have_a_schema():
    service = service_of('{"a": 1}')
    format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    choice = await choice_of(service, response_format=format_)
    assert choice["message"]["content"] == '{"a": 1}'
    assert text_of(service.engine.last.request.constraint, random.Random(0))[0] in "{<"


async def test_a_family_with_short_ids_gets_them():
    text = '[TOOL_CALLS][{"name": "clock", "arguments": {}}]'
    choice = await choice_of(service_of(text, template="mistral"))
    assert re.fullmatch("[a-zA-Z0-9]{9}", choice["message"]["tool_calls"][0]["id"])


async def test_a_conversation_goes_on_after_the_result():
    service = service_of(TWO)
    message = (await choice_of(service))["message"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "7"} for call in message["tool_calls"]]
    messages = [{"role": "user", "content": "hi"}, message, *results]
    assert (await service.chat(messages=messages, tools=TOOLS)).status_code == 200
    assert TOKENIZER.decode(service.engine.last.request.prompt_ids).endswith("<tool_call>7")


def call_of(**function):
    return {"type": "function", "function": {"name": "f"} | function}


USER = {"role": "user", "content": "hi"}
RESULT = {"role": "tool", "tool_call_id": "c9", "content": "7"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "custom": {"name": "a"}}]}, "tools[0].type"),
        ({"tools": [call_of(name="a b")]}, "tools[0].function.name"),
        ({"tools": [call_of(name="")]}, "tools[0].function.name"),
        ({"tools": [call_of(name="a" * 129)]}, "tools[0].function.name"),
        ({"tools": [call_of(name="é")]}, "tools[0].function.name"),
        ({"tools": [call_of(), call_of()]}, "tools[1].function.name"),
        ({"tools": [call_of(name=f"f{i}") for i in range(129)]}, "tools"),
        ({"tools": [call_of(parameters={"type": "string"})], "tool_choice": "required"},
         "tools[0].function.parameters.type"),
        ({"tools": [call_of(parameters={"type": "object"}, strict=True)]},
         "tools[0].function.parameters.additionalProperties"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        ({"tool_choice": NAMED | allowed("auto", "clock")}, "tool_choice.function"),
        ({"tool_choice": NAMED | {"allowed_tools": {"mode": "auto", "tools": [NAMED]}}}, "tool_choice.allowed_tools"),
        ({"tool_choice": allowed("none", "f")}, "tool_choice.allowed_tools.mode"),
        ({"tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        (
            {"tools": [call_of()], "tool_choice": allowed("auto", "f", "g")},
            "tool_choice.allowed_tools.tools[1].function.name",
        ),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice.function.name"),
        ({"tool_choice": 1}, "tool_choice"),
        ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"messages": [USER, RESULT]}, "messages[1].tool_call_id"),
        ({"messages": [USER, {"role": "tool", "content": "7"}]}, "messages[1].tool_call_id"),
    ],
)  # fmt: skip
async def test_what_does_not_fit_together_is_refused_by_name(fields, param):
    service = service_of("x")
    response = await service.chat(**({"tools": TOOLS} | fields))
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert service.engine.streams == []


async def test_a_model_whose_template_has_no_tools_says_so():
    service = service_of("x", chat_template=TEMPLATE)
    response = await service.chat(tools=TOOLS)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")
    assert "does not render tools" in response.json()["error"]["message"]


async def test_where_calls_look_like_json_an_answer_has_no_schema_beside_them():
    template = ChatTemplate("{{ tools }}", {})
    for fields, status in (({}, 400), ({"tool_choice": "required"}, 200), ({"tool_choice": "none"}, 200)):
        service = service_of("{}", chat_template=template)
        response = await service.chat(tools=TOOLS, response_format={"type": "json_object"}, **fields)
        assert response.status_code == status
        assert status == 200 or response.json()["error"]["param"] == "response_format"


async def test_tools_are_counted_by_tokenize():
    service = service_of("x")
    messages = [{"role": "user", "content": "hi"}]
    plain = (await service.post("/tokenize", {"messages": messages})).json()
    shown = (await service.post("/tokenize", {"messages": messages, "tools": TOOLS})).json()
    assert shown["count"] > plain["count"]
    assert json.dumps(SCHEMA)[:20] in TOKENIZER.decode(shown["tokens"])


async def test_a_call_is_found_where_its_opening_is_a_special_token():
    text = 'Yes.[TOOL_CALLS][{"name": "clock", "arguments": {}}]'
    model = {
        "tokenizer": samples.TOKENIZER,
        "vocab_size": samples.TOKENIZER.vocab_size,
        "chat_template": ChatTemplate(TEMPLATES["mistral"], {}),
        "max_model_len": 2048,
        "stop_ids": samples.ENDS,
    }
    service = Service([*samples.TOKENIZER.encode(text, add_special_tokens=False), FinishReason.STOP], model=model)
    message = (await choice_of(service))["message"]
    assert message["content"] == "Yes."
    assert message["tool_calls"][0]["function"] == {"name": "clock", "arguments": "{}"}
    plain = (await choice_of(service, tool_choice="none"))["message"]
    assert plain["content"] == text.replace("[TOOL_CALLS]", "")
