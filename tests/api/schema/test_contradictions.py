"""Fields that do not go together: which of them a refusal names, and what is nearly a contradiction and is taken."""

import json

import pytest

from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.completions import CompletionRequest
from service.api.schema.embeddings import EmbeddingsRequest
from service.api.schema.pooling import EmbeddingRequest, PoolingRequest
from service.api.schema.responses import ResponsesRequest
from service.api.schema.tokenize import TokenizeRequest
from service.api.schema.wire import parse
from service.errors import InvalidParameter, MissingParameter, UnsupportedParameter
from tests.api.schema.bodies import MESSAGE, SCHEMA, least, tool

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLING = {"role": "assistant", "tool_calls": [CALL]}
ITEM_CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
ITEM_RESULT = {"type": "function_call_output", "call_id": "a", "output": "4"}
ITEM_THOUGHT = {"type": "reasoning", "content": "hm"}
SOME = {"mode": "auto", "tools": [tool(0)]}
SOME_FLAT = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f0"}]}
FLAT = {"type": "function", "name": "f0"}
THINKING = {"role": "assistant", "reasoning": "hm", "reasoning_content": "hm"}


def check(kind, fields):
    return parse(kind, json.dumps(least(kind) | fields).encode())


def result(call_id):
    return {"role": "tool", "content": "4", "tool_call_id": call_id}


def of_type(kind, schema=None):
    return {"type": kind} if schema is None else {"type": kind, "json_schema": schema}


OF_BOTH = [
    ({"spaces_between_special_tokens": True, "skip_special_tokens": False}, "spaces_between_special_tokens"),
    ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"choice": [], "regex": "a"}}, "structured_outputs"),
    ({"structured_outputs": {"json": 7}}, "structured_outputs.json"),
    ({"structured_outputs": {"json": []}}, "structured_outputs.json"),
]
REFUSED = {
    ChatCompletionRequest: [
        *OF_BOTH,
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"messages": [MESSAGE, {"role": "tool", "content": "4"}, CALLING]}, "messages[1].tool_call_id"),
        ({"messages": [CALLING, MESSAGE, result("b")]}, "messages[2].tool_call_id"),
        ({"messages": [result("a"), CALLING]}, "messages[0].tool_call_id"),
        ({"response_format": of_type("json_schema")}, "response_format.json_schema"),
        ({"response_format": of_type("json_object", SCHEMA)}, "response_format.json_schema"),
        ({"response_format": of_type("text", SCHEMA)}, "response_format.json_schema"),
        (
            {"response_format": of_type("json_object"), "structured_outputs": {"regex": "a"}},
            "structured_outputs",
        ),
        ({"tools": [tool(0), tool(1), tool(1)]}, "tools[2].function.name"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tools": [tool(0)], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": [tool(0)], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        ({"tools": [tool(0)], "tool_choice": tool(0) | {"allowed_tools": SOME}}, "tool_choice.allowed_tools"),
        (
            {"tools": [tool(0)], "tool_choice": tool(0) | {"type": "allowed_tools", "allowed_tools": SOME}},
            "tool_choice.function",
        ),
        ({"tools": [tool(0)], "tool_choice": tool(1)}, "tool_choice.function.name"),
        (
            {
                "tools": [tool(0)],
                "tool_choice": {"type": "allowed_tools", "allowed_tools": SOME | {"tools": [tool(0), tool(1)]}},
            },
            "tool_choice.allowed_tools.tools[1].function.name",
        ),
        ({"tools": [tool(0)], "tool_choice": {"type": "auto"}}, "tool_choice.type"),
        ({"tools": [tool(0)], "tool_choice": {"type": "custom"}}, "tool_choice.type"),
        ({"tools": [tool(0)], "tool_choice": {}}, "tool_choice.type"),
    ],
    CompletionRequest: [
        *OF_BOTH,
        ({"echo": True, "truncate_prompt_tokens": 1}, "truncate_prompt_tokens"),
        ({"echo": True, "skip_special_tokens": False}, "skip_special_tokens"),
        ({"suffix": "a", "truncate_prompt_tokens": 1}, "truncate_prompt_tokens"),
        ({"suffix": "a", "echo": True, "logprobs": 0}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"prompt": ["a"] * 9, "n": 8}, "n"),
    ],
    ResponsesRequest: [
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"content": "a"}]}, "input[0].role"),
        ({"input": [MESSAGE, ITEM_CALL | {"call_id": None}]}, "input[1].call_id"),
        ({"input": [ITEM_CALL | {"name": None}]}, "input[0].name"),
        ({"input": [ITEM_CALL | {"content": "a"}]}, "input[0].content"),
        ({"input": [ITEM_CALL, ITEM_RESULT | {"call_id": None}]}, "input[1].call_id"),
        ({"input": [ITEM_CALL, ITEM_RESULT | {"name": "f"}]}, "input[1].name"),
        ({"input": [ITEM_CALL, ITEM_RESULT | {"call_id": "b"}]}, "input[1].call_id"),
        ({"input": [ITEM_RESULT, ITEM_CALL]}, "input[0].call_id"),
        ({"input": [ITEM_THOUGHT | {"role": "user"}]}, "input[0].role"),
        ({"input": [MESSAGE | {"arguments": "{}"}]}, "input[0].arguments"),
        ({"tool_choice": "other"}, "tool_choice"),
        ({"tool_choice": {"type": "auto"}}, "tool_choice.type"),
        ({"tool_choice": FLAT | {"name": 7}}, "tool_choice.name"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tool_choice": FLAT | {"mode": "auto"}}, "tool_choice.mode"),
        ({"tool_choice": FLAT | {"tools": [FLAT]}}, "tool_choice.tools"),
        ({"tool_choice": SOME_FLAT | {"name": "f0"}}, "tool_choice.name"),
        ({"tool_choice": SOME_FLAT | {"mode": None}}, "tool_choice.mode"),
        ({"tool_choice": SOME_FLAT | {"tools": None}}, "tool_choice.tools"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "text", "name": "a"}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_object", "schema": {}}}}, "text.format.schema"),
    ],
    EmbeddingsRequest: [
        ({"prompt_name": "a", "input_type": "query"}, "input_type"),
        ({"prompt_name": "a", "input": [1]}, "prompt_name"),
        ({"input_type": "query", "input": [[1], [2]]}, "input_type"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ],
    PoolingRequest: [
        ({"dimensions": 1}, "dimensions"),
        ({"dimensions": 1, "task": "classify"}, "dimensions"),
        ({"prompt_name": "a", "input_type": "query"}, "input_type"),
    ],
    EmbeddingRequest: [({"content": None}, "content"), ({"input": "a"}, "input")],
    TokenizeRequest: [
        ({"messages": None}, "prompt"),
        ({"prompt": ""}, "messages"),
        ({"messages": None, "prompt": "a", "tools": [tool(0)]}, "tools"),
        ({"messages": None, "prompt": "a", "add_generation_prompt": False}, "add_generation_prompt"),
        (
            {"messages": None, "prompt": "a", "continue_final_message": True, "add_generation_prompt": False},
            "add_generation_prompt",
        ),
        ({"messages": None, "prompt": "a", "chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
        ({"messages": None, "prompt": "a", "reasoning_effort": "low"}, "reasoning_effort"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"tools": [tool(0), tool(0)]}, "tools[1].function.name"),
    ],
}
TAKEN = {
    ChatCompletionRequest: [
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"spaces_between_special_tokens": False, "skip_special_tokens": False},
        {"spaces_between_special_tokens": True},
        {"logprobs": True, "top_logprobs": 20},
        {"max_tokens": 5, "max_completion_tokens": 5},
        {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "low"}},
        {"tool_choice": "auto"},
        {"stream_options": {}},
        {"messages": [THINKING]},
        {"messages": [THINKING | {"reasoning": "ha"}]},
        {"messages": [CALLING, result("a"), MESSAGE, result("a")]},
        {"messages": [CALLING, CALLING | {"tool_calls": [CALL | {"id": "b"}]}, result("a"), result("b")]},
        {"response_format": of_type("text"), "structured_outputs": {"regex": "a"}},
        {"tool_choice": "none"},
        {"tools": [tool(0)], "tool_choice": "none"},
        {"tools": [tool(0), tool(1)], "tool_choice": {"type": "allowed_tools", "allowed_tools": SOME}},
    ],
    CompletionRequest: [
        {"echo": True, "suffix": "a"},
        {"suffix": "", "truncate_prompt_tokens": 1},
        {"suffix": "", "echo": True, "logprobs": 0},
        {"suffix": "a", "logprobs": 0},
        {"max_tokens": 0, "echo": True},
        {"best_of": 2, "n": 2},
        {"prompt": ["a"] * 8, "n": 8},
    ],
    ResponsesRequest: [
        {"input": [MESSAGE, ITEM_THOUGHT, ITEM_CALL, ITEM_RESULT, ITEM_RESULT]},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 1},
        {"tool_choice": SOME_FLAT},
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": {}}}},
    ],
    EmbeddingsRequest: [{"prompt_name": "a"}, {"input_type": "query", "input": ["a"]}, {"input": [1]}],
    EmbeddingRequest: [{"content": None, "input": "a"}],
    TokenizeRequest: [{"messages": None, "prompt": "", "add_generation_prompt": True, "tools": []}],
}


@pytest.mark.parametrize(("kind", "fields", "param"), [(kind, *row) for kind, rows in REFUSED.items() for row in rows])
def test_fields_that_contradict_are_refused_and_one_of_them_is_named(kind, fields, param):
    with pytest.raises((InvalidParameter, MissingParameter, UnsupportedParameter)) as caught:
        check(kind, fields)
    assert caught.value.param == param
    assert param.partition(".")[0].partition("[")[0] in caught.value.message


@pytest.mark.parametrize(("kind", "fields"), [(kind, row) for kind, rows in TAKEN.items() for row in rows])
def test_fields_that_agree_are_taken(kind, fields):
    check(kind, fields)
