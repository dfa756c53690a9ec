"""What bodies mean to those who read them: what a response asks for, tools of a template, the grammar of a format."""

import json
from dataclasses import replace

import pytest

from service.api.conversation import (
    AnswerFormat,
    Call,
    Choice,
    Conversation,
    Effort,
    Function,
    Options,
    TextPart,
    Turn,
)
from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.completions import CompletionRequest
from service.api.schema.embeddings import EmbeddingsRequest
from service.api.schema.responses import ResponsesRequest
from service.api.schema.tokenize import TokenizeRequest
from service.api.schema.wire import parse
from tests.api.schema.bodies import SCHEMA, flat_tool, least, tool

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
ALL = {"mode": "auto", "tools": [tool(), tool(1)]}


def nothing_sealed(text, proof):
    return None


def read(kind, **fields):
    return parse(kind, json.dumps(least(kind) | fields).encode())


def conversation(**fields):
    return read(ResponsesRequest, **fields).conversation(nothing_sealed)


FUNCTION = Function(name="f0", name_at="tools[0].name", parameters_at="tools[0].parameters")
USER = Turn(role="user", parts=(TextPart("hi", "input[0].content[0].text"),), at="input[0]")


def system(text):
    return Turn(role="system", parts=(TextPart(text, "instructions"),), at="instructions")


def json_format(schema, at, *, is_strict=False):
    return AnswerFormat("json", schema, at, "text.format", is_strict=is_strict)


def test_the_least_response_asks_for_the_answer_to_its_text():
    options = Options(model="m", max_tokens_at="max_output_tokens", stop=[], stop_token_ids=[], bad_words=[])
    assert conversation() == Conversation(turns=[USER], at="input", options=options, tools=[], ignored=[])


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"max_output_tokens": 7}, {"max_tokens": 7}),
        ({"temperature": 0.5, "top_p": 0.25}, {"temperature": 0.5, "top_p": 0.25}),
        ({"presence_penalty": 1, "frequency_penalty": -1}, {"presence_penalty": 1.0, "frequency_penalty": -1.0}),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, {"num_logprobs": 3}),
        ({"text": {}}, {}),
        ({"text": {"format": {"type": "text"}}}, {}),
        ({"text": {"format": {"type": "json_object"}}}, {"format": json_format({"type": "object"}, "text.format")}),
        (
            {"text": {"format": SCHEMA | {"type": "json_schema", "description": "d", "strict": True}}},
            {"format": json_format(SCHEMA["schema"], "text.format.schema", is_strict=True)},
        ),
        ({"logit_bias": {"7": 1}}, {"logit_bias": {7: 1.0}}),
        ({"ignore_eos": True, "stop": "a"}, {"ignore_eos": True, "stop": ["a"]}),
        (
            {"structured_outputs": {"json": {}}},
            {"format": AnswerFormat("json", {}, "structured_outputs.json", "structured_outputs")},
        ),
        ({"safety_identifier": "s", "user": "u"}, {"user": "s"}),
        ({"metadata": {"a": "b"}, "prompt_cache_key": "k", "stream": True, "stream_options": {}}, {"stream": True}),
    ],
)
def test_each_option_of_a_response_has_its_meaning(fields, options):
    least = conversation()
    assert conversation(**fields) == replace(least, options=replace(least.options, **options))


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        ({"instructions": "Be brief."}, {"turns": [system("Be brief."), USER]}),
        ({"instructions": ""}, {"turns": [system(""), USER]}),
        ({"reasoning": {"effort": "low"}}, {"effort": Effort("low", "reasoning.effort")}),
        ({"reasoning": {}}, {}),
        (
            {"tools": [flat_tool() | {"description": "d", "parameters": PARAMETERS, "strict": True}]},
            {"tools": [replace(FUNCTION, description="d", parameters=PARAMETERS, is_strict=True)]},
        ),
        ({"tools": [flat_tool()]}, {"tools": [FUNCTION]}),
        ({"tools": [flat_tool()], "tool_choice": "none"}, {"tools": [FUNCTION], "choice": Choice("none")}),
        ({"tools": [flat_tool()], "tool_choice": "required"}, {"tools": [FUNCTION], "choice": Choice("required")}),
        (
            {"tools": [flat_tool()], "tool_choice": flat_tool()},
            {"tools": [FUNCTION], "choice": Choice("required", {"f0": "tool_choice.name"}, is_named=True)},
        ),
        (
            {"tools": [flat_tool()], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [flat_tool()]}},
            {"tools": [FUNCTION], "choice": Choice("auto", {"f0": "tool_choice.tools[0].name"})},
        ),
        ({"parallel_tool_calls": False}, {"allows_several_calls": False}),
        ({"truncation": "auto"}, {"drops_oldest": True}),
        ({"truncation": "disabled"}, {}),
        ({"enable_thinking": False}, {"effort": Effort("none", "enable_thinking")}),
        ({"reasoning_effort": "low"}, {"effort": Effort("low", "reasoning_effort")}),
    ],
)
def test_each_other_field_of_a_response_has_its_meaning(fields, meant):
    assert conversation(**fields) == replace(conversation(), **meant)


@pytest.mark.parametrize(
    "choice",
    ["none", "auto", "required", flat_tool(), {"type": "allowed_tools", "mode": "auto", "tools": [flat_tool()]}],
)
def test_the_choice_of_tools_is_repeated_as_it_was_stated(choice):
    assert read(ResponsesRequest, tool_choice=choice).tool_choice.as_stated() == choice


def test_items_become_the_messages_of_a_chat():
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    items = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_text", "text": "2 + "}, {"type": "input_text", "text": "2?"}]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        call,
        call | {"call_id": "b", "name": "g"},
        {"type": "function_call_output", "call_id": "b", "output": "4"},
        call | {"call_id": "c"},
        {"role": "user", "content": ""},
        {"type": "reasoning", "content": "ha"},
        call | {"call_id": "d"},
        {"role": "assistant", "content": "Four."},
    ]

    def calls(*pairs):
        return [Call(call_id, name, "{}") for call_id, name in pairs]

    def text(turn):
        return None if turn.parts is None else "".join(part.text for part in turn.parts)

    assert [
        (turn.role, text(turn), turn.thinking, list(turn.calls), turn.call_id, turn.at)
        for turn in conversation(input=items).turns
    ] == [
        ("developer", "Be kind.", None, [], None, "input[0]"),
        ("user", "2 + 2?", None, [], None, "input[1]"),
        ("assistant", "Let me see.", "hm", calls(("a", "f"), ("b", "g")), None, "input[3]"),
        ("tool", "4", None, [], "b", "input[6]"),
        ("assistant", None, None, calls(("c", "f")), None, "input[7]"),
        ("user", "", None, [], None, "input[8]"),
        ("assistant", None, "ha", calls(("d", "f")), None, "input[10]"),
        ("assistant", "Four.", None, [], None, "input[11]"),
    ]


def test_a_template_sees_a_tool_as_it_was_sent():
    stated = [{"function": {"strict": True, "parameters": PARAMETERS, "name": "f"}, "type": "function", "own": None}]
    for kind in (ChatCompletionRequest, TokenizeRequest):
        [shown] = [one.for_template() for one in read(kind, tools=stated).conversation(nothing_sealed).tools]
        assert json.dumps(shown) == json.dumps(stated[0])


def chat(**fields):
    return read(ChatCompletionRequest, **fields).conversation(nothing_sealed)


SOME = {"type": "allowed_tools", "allowed_tools": ALL}


@pytest.mark.parametrize(
    ("choice", "is_required", "names", "may_call"),
    [
        ("none", False, {}, False),
        ("auto", False, {}, True),
        ("required", True, {}, True),
        (tool(), True, {"f0": "tool_choice.function.name"}, True),
        (
            SOME,
            False,
            {f"f{i}": f"tool_choice.allowed_tools.tools[{i}].function.name" for i in range(2)},
            True,
        ),
    ],
)
def test_a_choice_tells_whether_and_which_tools_are_called(choice, is_required, names, may_call):
    asked = chat(tools=[tool(), tool(1)], tool_choice=choice)
    assert (asked.choice.mode == "required", asked.choice.names) == (is_required, names)
    assert bool(asked.shown_tools) == may_call
    must = SOME | {"allowed_tools": ALL | {"mode": "required"}}
    assert chat(tools=[tool(), tool(1)], tool_choice=must).choice.mode == "required"


def test_tools_may_be_called_where_there_are_any_and_no_choice():
    assert chat(tools=[tool()]).shown_tools
    assert not chat().shown_tools


@pytest.mark.parametrize(
    ("fields", "has_grammar", "param"),
    [
        ({}, False, None),
        ({"response_format": {"type": "text"}}, False, None),
        ({"response_format": {"type": "json_object"}}, True, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
            True,
            "response_format.json_schema.schema",
        ),
        *[
            ({"structured_outputs": {name: value}}, True, f"structured_outputs.{name}")
            for name, value in {
                "json": {}, "regex": "a", "choice": ["a"], "grammar": 'root ::= "a"', "json_object": True,
            }.items()
        ],
        ({"structured_outputs": {"json": '{"type": "object"}'}}, True, "structured_outputs.json"),
    ],
)  # fmt: skip
def test_a_format_is_a_grammar_that_knows_the_field_of_its_text(fields, has_grammar, param):
    stated = read(ChatCompletionRequest, **fields).options().format
    assert (stated is not None) == has_grammar
    assert (None if stated is None else stated.definition().param) == param


def test_the_end_user_has_two_names_of_which_the_newer_one_counts():
    def user(kind, **fields):
        return read(kind, **fields).options().user

    assert user(ChatCompletionRequest) is None
    assert user(ChatCompletionRequest, user="u") == "u"
    assert user(ChatCompletionRequest, user="u", safety_identifier="s") == "s"
    assert user(ChatCompletionRequest, user="u", safety_identifier="") == ""
    assert user(CompletionRequest, user="u") == "u"


def test_thinking_stands_under_either_of_its_names():
    for fields, thinking in (
        ({}, None),
        ({"reasoning": ""}, None),
        ({"reasoning": "a"}, "a"),
        ({"reasoning_content": "a"}, "a"),
        ({"reasoning": "a", "reasoning_content": "a"}, "a"),
    ):
        assert read(ChatCompletionRequest, messages=[{"role": "assistant"} | fields]).messages[0].thinking == thinking


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, [1, 2, 3, 4]),
        ({"truncate_prompt_tokens": 2}, [3, 4]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, [1, 2]),
        ({"truncate_prompt_tokens": 9}, [1, 2, 3, 4]),
        ({"truncate_prompt_tokens": -1}, [2, 3, 4]),
        ({"truncate_prompt_tokens": -1, "truncation_side": "right"}, [1, 2, 3]),
    ],
)
def test_a_prompt_is_cut_as_the_request_says(fields, kept):
    assert read(CompletionRequest, **fields).options().truncated([1, 2, 3, 4], max_model_len=4) == kept


def test_variables_of_a_template_are_set_by_two_fields():
    assert (chat().variables, chat().effort) == ({}, None)
    assert chat(chat_template_kwargs={"a": 1}).variables == {"a": 1}
    assert chat(reasoning_effort="low").effort == Effort("low", "reasoning_effort")


def test_a_text_to_embed_is_an_input_of_its_own_kind():
    assert read(EmbeddingsRequest, input=[1, 2]).input == ((1, 2),)
    assert read(EmbeddingsRequest, input=[[1, 2], [3]]).input == ((1, 2), (3,))
    assert read(EmbeddingsRequest, input=["a", "b"]).input == ("a", "b")
