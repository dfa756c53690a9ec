"""What bodies mean to those who read them: the chat of a response, the tools of a template, the grammar of a format."""

import json

import pytest

from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.completions import CompletionRequest
from service.api.schema.embeddings import EmbeddingsRequest
from service.api.schema.responses import ResponsesRequest
from service.api.schema.tokenize import TokenizeRequest
from service.api.schema.wire import parse
from tests.api.schema.bodies import MESSAGE, SCHEMA, flat_tool, least, tool

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
ALL = {"mode": "auto", "tools": [tool(), tool(1)]}
LEAST_CHAT = {
    "model": "m", "messages": [MESSAGE], "logprobs": False, "top_logprobs": 0, "tools": [],
    "parallel_tool_calls": True,
}  # fmt: skip


def nothing_sealed(text, proof):
    return None


def read(kind, **fields):
    return parse(kind, json.dumps(least(kind) | fields).encode())


def test_the_least_response_is_the_least_chat():
    chat = read(ResponsesRequest).as_chat(nothing_sealed).document
    assert chat == LEAST_CHAT
    parse(ChatCompletionRequest, json.dumps(chat).encode())


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        ({"instructions": "Be brief."}, {"messages": [{"role": "system", "content": "Be brief."}, MESSAGE]}),
        ({"instructions": ""}, {"messages": [{"role": "system", "content": ""}, MESSAGE]}),
        ({"max_output_tokens": 7}, {"max_completion_tokens": 7}),
        ({"temperature": 0.5, "top_p": 0.25}, {"temperature": 0.5, "top_p": 0.25}),
        ({"presence_penalty": 1, "frequency_penalty": -1}, {"presence_penalty": 1.0, "frequency_penalty": -1.0}),
        (
            {"include": ["message.output_text.logprobs"], "top_logprobs": 3},
            {"logprobs": True, "top_logprobs": 3},
        ),
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"reasoning": {}}, {}),
        ({"text": {}}, {}),
        ({"text": {"format": {"type": "text"}}}, {"response_format": {"type": "text"}}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": SCHEMA | {"type": "json_schema", "description": "d", "strict": True}}},
            {"response_format": {"type": "json_schema", "json_schema": SCHEMA | {"description": "d", "strict": True}}},
        ),
        (
            {"tools": [flat_tool() | {"description": "d", "parameters": PARAMETERS, "strict": True}]},
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f0", "description": "d", "parameters": PARAMETERS, "strict": True},
                    }
                ]
            },
        ),
        ({"tools": [flat_tool()]}, {"tools": [tool() | {"function": {"name": "f0", "strict": False}}]}),
        ({"tool_choice": "none"}, {"tool_choice": "none"}),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        ({"tool_choice": flat_tool()}, {"tool_choice": tool()}),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [flat_tool(), flat_tool(1)]}},
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": ALL | {"mode": "required"}}},
        ),
        ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        ({"truncation": "auto"}, {"truncation": "auto"}),
        ({"truncation": "disabled"}, {}),
        ({"logit_bias": {"7": 1}}, {"logit_bias": {"7": 1.0}}),
        ({"ignore_eos": True, "stop": "a"}, {"ignore_eos": True, "stop": ["a"]}),
        ({"structured_outputs": {"json": {}}}, {"structured_outputs": {"json": {}}}),
        ({"enable_thinking": False}, {"enable_thinking": False}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ({"safety_identifier": "s", "user": "u"}, {"safety_identifier": "s", "user": "u"}),
        ({"metadata": {"a": "b"}, "prompt_cache_key": "k", "stream": True, "stream_options": {}}, {}),
    ],
)  # fmt: skip
def test_each_field_of_a_response_means_one_of_its_chat(fields, meant):
    assert read(ResponsesRequest, **fields).as_chat(nothing_sealed).document == LEAST_CHAT | meant


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
        return [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}
            for call_id, name in pairs
        ]

    assert read(ResponsesRequest, input=items).as_chat(nothing_sealed).document["messages"] == [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "2 + 2?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "hm",
            "tool_calls": calls(("a", "f"), ("b", "g")),
        },
        {"role": "tool", "tool_call_id": "b", "content": "4"},
        {"role": "assistant", "tool_calls": calls(("c", "f"))},
        {"role": "user", "content": ""},
        {"role": "assistant", "reasoning_content": "ha", "tool_calls": calls(("d", "f"))},
        {"role": "assistant", "content": "Four."},
    ]


def test_a_template_sees_a_tool_as_it_was_sent():
    stated = [{"function": {"strict": True, "parameters": PARAMETERS, "name": "f"}, "type": "function", "own": None}]
    for kind in (ChatCompletionRequest, TokenizeRequest):
        [shown] = [one.for_template() for one in read(kind, tools=stated).tools]
        assert json.dumps(shown) == json.dumps(stated[0])


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
    body = read(ChatCompletionRequest, tools=[tool(), tool(1)], tool_choice=choice)
    assert (body.tool_choice.is_required, body.tool_choice.names) == (is_required, names)
    assert body.may_call_tools == may_call
    must = SOME | {"allowed_tools": ALL | {"mode": "required"}}
    assert read(ChatCompletionRequest, tools=[tool(), tool(1)], tool_choice=must).tool_choice.is_required


def test_tools_may_be_called_where_there_are_any_and_no_choice():
    assert read(ChatCompletionRequest, tools=[tool()]).may_call_tools
    assert not read(ChatCompletionRequest).may_call_tools


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
    body = read(ChatCompletionRequest, **fields)
    stated = body.structured_outputs or body.response_format
    definition = None if stated is None else stated.definition()
    assert body.has_grammar == has_grammar
    assert (None if definition is None else definition.param) == param


def test_the_end_user_has_two_names_of_which_the_newer_one_counts():
    assert read(ChatCompletionRequest).end_user is None
    assert read(ChatCompletionRequest, user="u").end_user == "u"
    assert read(ChatCompletionRequest, user="u", safety_identifier="s").end_user == "s"
    assert read(ChatCompletionRequest, user="u", safety_identifier="").end_user == ""
    assert read(CompletionRequest, user="u").end_user == "u"


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
    assert read(CompletionRequest, **fields).truncated([1, 2, 3, 4], max_model_len=4) == kept


def test_variables_of_a_template_are_set_by_two_fields():
    assert not read(ChatCompletionRequest).sets_variables
    assert read(ChatCompletionRequest, chat_template_kwargs={"a": 1}).sets_variables
    assert read(ChatCompletionRequest, reasoning_effort="low").sets_variables


def test_a_text_to_embed_is_an_input_of_its_own_kind():
    assert read(EmbeddingsRequest, input=[1, 2]).input == ((1, 2),)
    assert read(EmbeddingsRequest, input=[[1, 2], [3]]).input == ((1, 2), (3,))
    assert read(EmbeddingsRequest, input=["a", "b"]).input == ("a", "b")
