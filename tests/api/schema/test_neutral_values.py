"""Promises that are refused, hints that are accepted and named, and null, which is nothing anywhere."""

import json

import pytest

from service.api.schema import (
    batches,
    chat,
    completions,
    response_input,
    response_tools,
    responses,
    tokenize,
    tools,
)
from service.api.schema.wire import ANY, parse
from service.errors import MissingParameter, UnsupportedParameter
from tests.api.schema.bodies import OBJECTS, SCHEMA, flat_tool, least, tool

# What a refusal tells to send instead.
REMEDIES = {
    completions.CompletionRequest: {"response_format": "'structured_outputs'"},
    responses.ResponsesRequest: {"conversation": "'input'"},
}
OTHER_VALUES = ("something", 10**9, [1], {"a": 1})
# Objects inside others: null there too is the same as nothing, and their unsupported fields are named by their path.
PART = {"type": "input_text", "text": "a"}
FORMAT = {"type": "json_schema", "json_schema": SCHEMA | {"strict": None}}
EXPIRY = {"anchor": "created_at", "seconds": None}
NESTED = [
    (chat.ChatCompletionRequest, "stream_options", {"include_usage": None}, {"stream": True}),
    (chat.ChatCompletionRequest, "structured_outputs", {"regex": "a", "structural_tag": None}, {}),
    (chat.ChatCompletionRequest, "response_format", FORMAT, {}),
    (chat.ChatCompletionRequest, "tools", [{"type": "function", "function": {"name": "f", "strict": None}}], {}),
    (chat.ChatCompletionRequest, "messages", [{"role": "user", "content": "a", "audio": None}], {}),
    (completions.CompletionRequest, "stream_options", {"include_usage": None}, {"stream": True}),
    (completions.CompletionRequest, "structured_outputs", {"regex": "a", "structural_tag": None}, {}),
    (tokenize.TokenizeRequest, "messages", [{"role": "user", "content": "a", "audio": None}], {}),
    (tokenize.TokenizeRequest, "tools", [{"type": "function", "function": {"name": "f", "strict": None}}], {}),
    (responses.ResponsesRequest, "stream_options", {"include_obfuscation": None}, {"stream": True}),
    (responses.ResponsesRequest, "reasoning", {"summary": None}, {}),
    (responses.ResponsesRequest, "text", {"format": {"type": "text", "strict": None}, "verbosity": None}, {}),
    (responses.ResponsesRequest, "tools", [flat_tool() | {"strict": None}], {}),
    (
        responses.ResponsesRequest,
        "input",
        [
            {"role": "assistant", "type": None, "content": [{"type": "output_text", "text": "a", "logprobs": None}]},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": ""},
            {"type": "function_call_output", "call_id": "a", "output": [PART | {"annotations": []}]},
        ],
        {},
    ),
]  # fmt: skip


def read(kind, **fields):
    return parse(kind, json.dumps(least(kind) | fields).encode())


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in OBJECTS for name in kind.refused])
def test_a_promise_that_is_not_kept_is_refused_except_at_values_that_ask_for_nothing(kind, name):
    for value in (None, *kind.refused[name]):
        assert read(kind, **{name: value}) == read(kind)
        assert read(kind, **{name: value}).ignored == ()
    for value in OTHER_VALUES:
        with pytest.raises(UnsupportedParameter) as caught:
            read(kind, **{name: value})
        assert caught.value.param == name
        assert REMEDIES.get(kind, {}).get(name, "") in caught.value.message


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in OBJECTS for name in kind.hints])
def test_a_hint_is_accepted_at_every_value_and_named_where_it_has_no_effect(kind, name):
    without_effect = kind.hints[name]
    for value in (None, *(OTHER_VALUES if without_effect is ANY else without_effect)):
        assert read(kind, **{name: value}) == read(kind)
        assert read(kind, **{name: value}).ignored == ()
    for value in () if without_effect is ANY else OTHER_VALUES:
        assert read(kind, **{name: value}).model_dump() == read(kind).model_dump()
        assert [(field.path, field.is_known) for field in read(kind, **{name: value}).ignored] == [(name, True)]


@pytest.mark.parametrize(("kind", "name", "value", "needs"), NESTED)
def test_null_is_nothing_inside_of_objects_too(kind, name, value, needs):
    assert read(kind, **needs | {name: value}) == read(kind, **needs | {name: without_nulls(value)})


def without_nulls(value):
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


MISSING = [
    (chat.ChatCompletionRequest, {"tools": [tool() | {"function": {"name": None}}]}, "tools[0].function.name"),
    (
        chat.ChatCompletionRequest,
        {"tools": [tool()], "tool_choice": tool() | {"function": {"name": None}}},
        "tool_choice.function.name",
    ),
    (
        chat.ChatCompletionRequest,
        {
            "tools": [tool()],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": None, "tools": [tool()]}},
        },
        "tool_choice.allowed_tools.mode",
    ),
    (
        chat.ChatCompletionRequest,
        {
            "tools": [tool()],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [tool() | {"function": {"name": None}}]},
            },
        },
        "tool_choice.allowed_tools.tools[0].function.name",
    ),
    (
        responses.ResponsesRequest,
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [flat_tool() | {"name": None}]}},
        "tool_choice.tools[0].name",
    ),
    (batches.FileFields, {"expires_after": EXPIRY}, "expires_after.seconds"),
    (batches.BatchRequest, {"output_expires_after": EXPIRY}, "output_expires_after.seconds"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "fields", "param"), MISSING)
def test_a_required_field_of_an_inner_object_that_is_null_is_missing(kind, fields, param):
    with pytest.raises(MissingParameter) as caught:
        read(kind, **fields)
    assert caught.value.param == param


TYPES = [
    (tools.Tool, "function"),
    (tools.AllowedTool, "function"),
    (response_tools.NamedTool, "function', 'custom', 'local_shell"),
    (response_tools.ChosenTool, "function', 'custom', 'local_shell', 'allowed_tools"),
    (tools.ToolChoice, "none', 'auto', 'required', 'function', 'allowed_tools"),
    (
        response_input.InputPart,
        "input_text', 'output_text', 'reasoning_text', 'refusal', 'summary_text', 'text', 'input_image",
    ),
]


@pytest.mark.parametrize(("kind", "types"), TYPES)
def test_an_object_of_another_type_is_refused_with_the_types_that_are_supported(kind, types):
    with pytest.raises(UnsupportedParameter) as caught:
        read(kind, type="o" * 65, other=1)
    assert caught.value.param == "type"
    assert f"it is '{'o' * 64}'. Supported: '{types}'." in caught.value.message


@pytest.mark.parametrize("kind", [response_input.InputItem, response_tools.NamespacedTool, response_tools.ResponseTool])
def test_an_object_of_another_type_is_left_out_and_named_where_others_run_it(kind):
    found = read(kind, type="other", name="f", mood=1)
    assert (found.type, found.name) == ("other", None)
    assert [(field.path, field.is_known) for field in found.ignored] == [("", True)]
