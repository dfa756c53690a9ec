"""Every field of every object that clients send, by the JSON schema of the interface, which docs/openapi.json shows."""

import json

import pytest
from pydantic import ValidationError

from service.api.schema import (
    chat,
    completions,
    decisions,
    generation,
    ollama,
    pooling,
    rerank,
    response_input,
    responses,
)
from service.api.schema.loads import LoadsQuery
from service.api.schema.messages import CountTokensRequest, MessagesRequest
from service.api.schema.response_tools import ChosenTool, NamespacedTool, ResponseTool
from service.api.schema.tokenize import TokenizeRequest
from service.api.schema.wire import checked, parse
from service.errors import InvalidParameter, MissingParameter, UnsupportedParameter
from tests.api.schema.bodies import MESSAGE, OBJECTS, beyond, document, flat_tool, least, tool, within

ONE_PATTERN = {"structured_outputs": {"regex": "a"}}
FUNCTIONS = [tool(index) for index in range(128)]
# Fields whose values need others beside them, or names that differ: what is tried instead of values of the schema.
INSTEAD = {
    (chat.ChatCompletionRequest, "continue_final_message"): [{"add_generation_prompt": False}],
    (chat.ChatCompletionRequest, "structured_outputs"): [ONE_PATTERN],
    (chat.ChatCompletionRequest, "functions"): [{"functions": []}, {"functions": [{"name": "f"}]}],
    (chat.ChatCompletionRequest, "tools"): [{"tools": []}, {"tools": FUNCTIONS}],
    (chat.ChatCompletionRequest, "tool_choice"): [
        {"tools": FUNCTIONS, "tool_choice": choice} for choice in ("none", "auto", "required", tool())
    ],
    (chat.ChatCompletionRequest, "top_logprobs"): [{"logprobs": True, "top_logprobs": 20}],
    (completions.CompletionRequest, "structured_outputs"): [ONE_PATTERN],
    (completions.CompletionRequest, "best_of"): [{"best_of": 1}, {"n": 8, "best_of": 8}],
    (responses.ResponsesRequest, "n"): [{"n": 1}],
    (responses.ResponsesRequest, "structured_outputs"): [ONE_PATTERN],
    (responses.ResponsesRequest, "input"): [{"input": "a"}, {"input": [MESSAGE]}],
    (responses.ResponsesRequest, "top_logprobs"): [
        {"include": ["message.output_text.logprobs"], "top_logprobs": 20},
    ],
    (responses.ResponsesRequest, "tool_choice"): [{"tools": [flat_tool()], "tool_choice": "auto"}],
    (responses.ResponsesRequest, "tools"): [{"tools": [flat_tool(index) for index in range(128)]}],
    (TokenizeRequest, "tools"): [{"tools": FUNCTIONS}],
    (TokenizeRequest, "prompt"): [{"prompt": "a", "messages": None}],
    (TokenizeRequest, "continue_final_message"): [{"add_generation_prompt": False, "continue_final_message": True}],
    (pooling.PoolingRequest, "dimensions"): [{"task": "embed", "dimensions": 2**31 - 1}],
    (pooling.EmbeddingRequest, "input"): [{"content": None, "input": ["a"] * 2048}],
    (rerank.ScoreRequest, "text_1"): [{"text_1": ["a"] * 2048, "text_2": ["b"] * 2048}],
    (LoadsQuery, "include"): [{"include": "core,memory"}],
    (chat.ContentPart, "type"): [{"type": "text"}, {"type": "image_url", "image_url": {"url": "data:,"}}],
    (response_input.InputPart, "type"): [{"type": "input_text"}, {"type": "input_image", "image_url": "data:,"}],
    (decisions.DecisionPart, "type"): [{"type": "input_text"}, {"type": "input_json", "data": {}}],
    (decisions.DecisionsRequest, "input"): [{"input": "a"}, {"input": [MESSAGE]}],
    (ChosenTool, "type"): [
        {"type": "function"},
        {"type": "custom"},
        {"type": "allowed_tools", "mode": "auto", "tools": [flat_tool()]},
    ],
    (CountTokensRequest, "tools"): [{"tools": [{"name": f"f{index}"} for index in range(128)]}],
    (MessagesRequest, "tools"): [{"tools": [{"name": f"f{index}"} for index in range(128)]}],
}
# Values that are taken though the schema does not offer them, since clients send them for nothing.
TAKEN_ALL_THE_SAME = {
    (completions.CompletionRequest, "prompt"): [[]],
    (rerank.RerankRequest, "rid"): [{}],
}
# Values that the schema offers and that are refused by name: what it cannot say.
REFUSED_ALL_THE_SAME = {
    (chat.ChatCompletionRequest, "tools"): [{"tools": [tool(), tool()]}],
    (chat.ChatCompletionRequest, "structured_outputs"): [{"structured_outputs": {}}],
    (responses.ResponsesRequest, "n"): [{"n": 2}, {"n": 8}],
    (responses.ResponsesRequest, "input"): [{"input": [{"type": "message"}]}],
    (responses.ResponsesRequest, "tool_choice"): [{"tool_choice": {"type": "function"}}],
    (decisions.DecisionsRequest, "input"): [{"input": [{"type": "message"}]}],
    (decisions.DecisionsRequest, "questions"): [{"questions": [{"instructions": "a"}]}, {"questions": [{"type": "a"}]}],
    (LoadsQuery, "include"): [{"include": "other"}],
}

each_object = pytest.mark.parametrize("kind", OBJECTS, ids=lambda kind: kind.__name__)


def read(kind, fields):
    return parse(kind, json.dumps(least(kind) | fields).encode())


def fields_of(kind):
    schema = document(kind)
    return [(name, field, schema.get("$defs", {})) for name, field in schema["properties"].items()]


def written(parsed):
    return parsed.model_dump(mode="json", by_alias=True, warnings=False)


def test_objects_are_found():
    assert {chat.Message, responses.ResponsesRequest, generation.StreamOptions, ollama.OllamaOptions} < set(OBJECTS)


@each_object
def test_what_the_schema_allows_is_accepted_and_is_no_ignored_field(kind):
    for name, schema, definitions in fields_of(kind):
        bodies = INSTEAD.get((kind, name)) or [{name: value} for value in within(schema, definitions)]
        for body in bodies:
            assert [field.path for field in read(kind, body).ignored if field.path == name] == []


@each_object
def test_what_the_schema_forbids_is_refused_by_the_fields_name(kind):
    for name, schema, definitions in fields_of(kind):
        taken = TAKEN_ALL_THE_SAME.get((kind, name), ())
        for value in beyond(schema, definitions):
            if name in kind.effective_values and value != "":
                assert [field.path for field in read(kind, {name: value}).ignored] == [name]
            elif value not in taken and (value != "" or name not in kind.blank):
                check_refused(kind, name, {name: value})
        for body in REFUSED_ALL_THE_SAME.get((kind, name), ()):
            check_refused(kind, name, body)


def check_refused(kind, name, body):
    with pytest.raises((InvalidParameter, MissingParameter, UnsupportedParameter)) as caught:
        read(kind, body)
    param = caught.value.param
    assert param == name or param.startswith((f"{name}.", f"{name}["))
    assert f"'{param}'" in caught.value.message


@each_object
def test_null_is_absence(kind):
    for name, _, _ in fields_of(kind):
        body = {key: value for key, value in least(kind).items() if key != name}
        # SGLang's `rid` asks for its form of an answer even as null.
        if name in least(kind) or name == "rid":
            continue
        assert vars(checked(kind, body | {name: None})) == vars(checked(kind, body))


@each_object
def test_a_required_field_that_is_missing_or_null_is_named(kind):
    for name in document(kind).get("required", ()):
        body = {key: value for key, value in least(kind).items() if key != name}
        for document_of_request in (body, body | {name: None}):
            with pytest.raises(MissingParameter) as caught:
                checked(kind, document_of_request)
            assert caught.value.param == name


@each_object
def test_a_default_is_what_the_schema_states(kind):
    parsed = written(read(kind, {}))
    for name, schema, _ in fields_of(kind):
        if "default" in schema and name not in least(kind) and isinstance(parsed, dict):
            assert parsed[name] == schema["default"]


@each_object
def test_a_field_of_no_object_is_accepted_and_named(kind):
    assert [(field.path, field.is_known) for field in read(kind, {"mood": {"mood": 1}}).ignored] == [("mood", False)]


@pytest.mark.parametrize("kind", [NamespacedTool, ResponseTool])
def test_a_name_of_a_tool_has_no_line_break(kind):
    with pytest.raises(InvalidParameter):
        read(kind, {"name": "a\n"})


@pytest.mark.parametrize(
    ("kind", "body", "name", "found"),
    [
        (chat.ChatCompletionRequest, {"max_tokens": -1}, "max_tokens", None),
        (completions.CompletionRequest, {"max_tokens": 0, "echo": True}, "max_tokens", 0),
        (chat.ChatCompletionRequest, {"top_p": 0}, "top_p", 1e-6),
        (chat.ChatCompletionRequest, {"stop": ["a", ""]}, "stop", ["a"]),
        (chat.ChatCompletionRequest, {"stop": "a"}, "stop", ["a"]),
        (chat.ChatCompletionRequest, {"logit_bias": {"7": 1}}, "logit_bias", {"7": 1.0}),
        (completions.CompletionRequest, {"prompt": [1]}, "prompt", [[1]]),
        (rerank.RerankRequest, {"documents": [{"text": "a"}, "b"]}, "documents", ["a", "b"]),
        (chat.FunctionCall, {"arguments": {"a": 1}}, "arguments", '{"a":1}'),
        (chat.Message, {"content": "a"}, "content", [{"type": "text", "text": "a"}]),
        (
            response_input.InputItem,
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": ""},
            "arguments",
            "{}",
        ),
    ],
)
def test_a_value_is_read_in_one_form(kind, body, name, found):
    assert (
        parse(kind, json.dumps(least(kind) | body).encode()).model_dump(
            mode="json", by_alias=True, exclude_unset=True, warnings=False
        )[name]
        == found
    )


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (chat.ChatCompletionRequest, "messages", [7] * 3),
        (chat.ChatCompletionRequest, "stop", [7] * 3),
        (responses.ResponsesRequest, "metadata", {f"{index}": 5 for index in range(3)}),
    ],
)
def test_the_first_fault_of_a_list_ends_its_check(kind, name, value):
    """So the longest list costs no more errors than the shortest."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(least(kind) | {name: value})
    assert caught.value.error_count() == 1


@pytest.mark.parametrize(
    "bias", [{str(i): 1 for i in range(1025)}, {"01": 1}, {"-1": 1}, {"a": 1}, {"1" * 11: 1}, {"1": True}]
)
def test_a_bias_names_tokens_that_can_exist(bias):
    check_refused(chat.ChatCompletionRequest, "logit_bias", {"logit_bias": bias})
