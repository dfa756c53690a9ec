"""What clients send that asks for nothing: fields of other interfaces at their neutral values, and null."""

import json

import pytest

from service.api.schema import (
    batches,
    chat,
    completions,
    embeddings,
    generation,
    pooling,
    rerank,
    response_input,
    responses,
    structured,
    tokenize,
    tools,
)
from service.api.schema.wire import parse
from service.errors import MissingParameter, UnsupportedParameter
from tests.api.schema.generation_requests import GENERATION_REQUESTS
from tests.api.schema.other_requests import OTHER_REQUESTS
from tests.api.schema.parts_of_requests import PARTS, SCHEMA, flat_tool, tool

OBJECTS = GENERATION_REQUESTS | OTHER_REQUESTS | PARTS
CACHE_TIMES, TIERS = ("in_memory", "in-memory"), ("auto", "default")
NO_OBFUSCATION = {"include_obfuscation": (False,)}
VLLM = {
    "detokenize": (True,),
    **dict.fromkeys(("guided_choice", "guided_decoding_backend", "guided_grammar", "guided_json", "guided_regex"), ()),
    **dict.fromkeys(("guided_whitespace_pattern", "kv_transfer_params", "request_id"), ()),
    "length_penalty": (1, 1.0),
    "logits_processors": ([],),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
}
VECTORS = {
    "add_special_tokens": (True,), "embed_dtype": ("float32",), "messages": (), "priority": (0,), "request_id": (),
}  # fmt: skip
PAIRS = {"priority": (0,), "request_id": (), "mm_processor_kwargs": ()}
# Of each kind of object the fields that are not supported, with the values at which they have no effect.
NEUTRAL = {
    chat.ChatCompletionRequest: VLLM | {
        "add_special_tokens": (False,), "audio": (), "chat_template": (), "documents": ([],), "echo": (False,),
        "function_call": ("none",), "functions": ([],), "include_reasoning": (True,), "mm_processor_kwargs": (),
        "modalities": (["text"],), "moderation": (), "prediction": (), "prompt_cache_options": (),
        "prompt_cache_retention": CACHE_TIMES, "service_tier": TIERS, "store": (False,), "verbosity": ("medium",),
        "web_search_options": (),
    },
    completions.CompletionRequest: VLLM | {
        "add_special_tokens": (True,), "prompt_embeds": (), "response_format": ({"type": "text"},),
    },
    responses.ResponsesRequest: {
        "access_programs": (), "background": (False,), "context_management": ([],), "conversation": (), "image": (),
        "max_tool_calls": (), "moderation": (), "previous_response_id": (), "prompt": (), "prompt_cache_options": (),
        "prompt_cache_retention": CACHE_TIMES, "service_tier": TIERS, "store": (False,), "truncation": ("disabled",),
    },
    chat.Message: {
        "annotations": ([],), "audio": (), "function_call": (), "refusal": (), "type": ("text",),
    },
    embeddings.EmbeddingsRequest: VECTORS,
    pooling.PoolingRequest: VECTORS | {
        "additional_data": (), "endianness": ("little", "native"), "normalize": (True,), "use_activation": (True,),
    },
    rerank.RerankRequest: PAIRS,
    rerank.ScoreRequest: PAIRS,
    tokenize.TokenizeRequest: {"chat_template": (), "mm_processor_kwargs": ()},
    generation.StreamOptions: NO_OBFUSCATION,
    responses.ResponseStreamOptions: NO_OBFUSCATION,
    responses.TextConfig: {"verbosity": ("medium",)},
    responses.ReasoningConfig: {"generate_summary": (), "summary": ()},
    response_input.InputItem: {"encrypted_content": (), "summary": ([],)},
    response_input.InputPart: {"annotations": ([],), "logprobs": ([],)},
    structured.StructuredOutputs: {
        "disable_additional_properties": (False,), "disable_any_whitespace": (False,),
        "disable_fallback": (False, True), "structural_tag": (), "whitespace_pattern": (),
    },
}  # fmt: skip
# What a refusal tells to send instead.
REMEDIES = {
    chat.ChatCompletionRequest: {"functions": "'tools'", "function_call": "'tool_choice'"},
    completions.CompletionRequest: {"response_format": "'structured_outputs'"},
    responses.ResponsesRequest: {"conversation": "'input'", "previous_response_id": "'input'", "store": "Send false"},
}
for generating in (chat.ChatCompletionRequest, completions.CompletionRequest):
    for notation in ("choice", "grammar", "json", "regex"):
        REMEDIES[generating][f"guided_{notation}"] = f"'structured_outputs': {{'{notation}'"
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
    return parse(kind, json.dumps(OBJECTS[kind][0] | fields).encode())


def test_the_fields_that_are_refused_and_their_neutral_values_are_these():
    assert {kind: kind.neutral_values for kind in OBJECTS if kind.neutral_values} == NEUTRAL


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NEUTRAL.items() for name in names])
def test_a_field_is_taken_at_its_neutral_values_alone_and_has_no_effect(kind, name):
    for value in (None, *NEUTRAL[kind][name]):
        assert read(kind, **{name: value}) == read(kind)
    for value in ("something", 10**9, [1], {"a": 1}):
        with pytest.raises(UnsupportedParameter) as caught:
            read(kind, **{name: value})
        assert caught.value.param == name
        assert REMEDIES.get(kind, {}).get(name, "") in caught.value.message


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
    (responses.FunctionTool, "function"),
    (responses.NamedTool, "function"),
    (responses.ChosenTool, "function', 'allowed_tools"),
    (tools.ToolChoice, "none', 'auto', 'required', 'function', 'allowed_tools"),
    (response_input.InputItem, "message', 'function_call', 'function_call_output', 'reasoning"),
    (response_input.InputPart, "input_text', 'output_text', 'reasoning_text"),
]


@pytest.mark.parametrize(("kind", "types"), TYPES)
def test_an_object_of_another_type_is_refused_with_the_types_that_are_supported(kind, types):
    with pytest.raises(UnsupportedParameter) as caught:
        read(kind, type="o" * 65, other=1)
    assert caught.value.param == "type"
    assert f"it is '{'o' * 64}'. Supported: '{types}'." in caught.value.message
