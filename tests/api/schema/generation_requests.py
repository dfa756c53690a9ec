"""The fields of requests for text: chats, completions and responses."""

from dataclasses import replace

from service.api.schema import chat, completions, generation, responses
from tests.api.schema.parts_of_requests import MESSAGE, NAMED, SCHEMA, flat_tool, tool
from tests.api.schema.values import (
    BIAS,
    FLAG,
    INT32_MAX,
    INT64_MAX,
    LIMIT,
    LONG_NAME,
    METADATA,
    OBJECT,
    PROMPTS,
    REQUIRED,
    STOP,
    Field,
    Values,
    choice,
    field,
    ids,
    integer,
    list_of,
    nested,
    number,
    text,
)

SAMPLING = {
    "temperature": field(None, number(0, 2)),
    "top_p": field(None, Values((0, 1e-6, 1), (-0.01, 1.01, "1", True), reads=lambda value: value or 1e-6)),
    "top_k": field(None, integer(-1, INT32_MAX)),
    "min_p": field(None, number(0, 1)),
    "repetition_penalty": field(None, number(0.01, 10, step=0.005)),
    "presence_penalty": field(0.0, number(-2, 2)),
    "frequency_penalty": field(0.0, number(-2, 2)),
    "logit_bias": field({}, BIAS),
    "seed": field(None, integer(-(2**63), INT64_MAX)),
    "n": field(1, integer(1, 8)),
    "min_tokens": field(0, integer(0, INT32_MAX)),
    "ignore_eos": field(False, FLAG),
    "stop_token_ids": field([], ids(longest=32)),
    "allowed_token_ids": field(None, ids(longest=2**18, shortest=1)),
}
STREAM_OPTIONS = nested({}, {"include_usage": True})
OUTPUTS = nested({"regex": "a"}, {"json": {}}, {"json_object": True}, refused=({}, {"regex": "a", "grammar": "b"}))
SHARED = SAMPLING | {
    "stop": field([], STOP),
    "include_stop_str_in_output": field(False, FLAG),
    "priority": field(0, integer(-1_000_000, 1_000_000)),
    "bad_words": field([], list_of(lambda index: "a" * 128, "", longest=64)),
    "cache_salt": field(None, text(512, shortest=1)),
    "skip_special_tokens": field(True, FLAG),
    "spaces_between_special_tokens": field(None, FLAG),
    "truncate_prompt_tokens": field(None, replace(integer(-1, INT32_MAX), unstated=(0,))),
    "truncation_side": field("left", choice("left", "right")),
    "structured_outputs": field(None, OUTPUTS),
}
GENERATION = SHARED | {
    "model": field(REQUIRED, LONG_NAME),
    "max_tokens": field(None, LIMIT),
    "stream": field(False, FLAG),
    "stream_options": field(None, STREAM_OPTIONS, stream=True),
    "user": field(None, text()),
    "return_tokens_as_token_ids": field(False, FLAG),
    "return_token_ids": field(False, FLAG),
    "prompt_logprobs": field(None, integer(0, 20)),
}
VARIABLES = {
    "chat_template_kwargs": field({}, OBJECT),
    "reasoning_effort": field(None, text()),
    "thinking": field(None, Values(({"type": "disabled"}, False, "low"), (7,))),
    "enable_thinking": field(None, FLAG),
}
TEMPLATE = VARIABLES | {
    "add_generation_prompt": field(True, FLAG),
    "continue_final_message": field(False, FLAG, add_generation_prompt=False),
    "documents": field([], list_of(lambda index: {"text": f"d{index}"}, 7)),
    "reasoning": field(None, Values(({"effort": "low"}, True), ("low", 7))),
}
CHOICE = Values(
    taken=("none", "auto", "required", tool()),
    refused=("other", "", 7, []),
)
TOOLS = list_of(tool, 7, longest=128)

# Of each kind of request its least one, and its fields.
GENERATION_REQUESTS: dict[type, tuple[dict[str, object], dict[str, Field]]] = {
    chat.ChatCompletionRequest: (
        {"model": "m", "messages": [MESSAGE]},
        GENERATION
        | TEMPLATE
        | {
            "messages": field(REQUIRED, list_of(lambda index: {"role": "user"}, 7, shortest=1)),
            "max_completion_tokens": field(None, LIMIT),
            "functions": field([], replace(list_of(lambda index: {"name": f"f{index}"}, 7), wrong_items=None)),
            "function_call": field(
                None, Values(("none", "auto", {"name": "f0"}), ("other", 7)), functions=[{"name": "f0"}]
            ),
            "response_format": field(None, nested({"type": "text"}, {"type": "json_schema", "json_schema": SCHEMA})),
            "tools": field([], TOOLS),
            "tool_choice": field(None, CHOICE, tools=[tool()]),
            "parallel_tool_calls": field(True, FLAG),
            "logprobs": field(False, FLAG),
            "top_logprobs": field(0, integer(0, 20), logprobs=True),
            "safety_identifier": field(None, text()),
            "truncation": field("disabled", choice("auto", "disabled")),
        },
    ),
    completions.CompletionRequest: (
        {"model": "m", "prompt": "hi"},
        GENERATION
        | {
            "prompt": field(REQUIRED, PROMPTS),
            "logprobs": field(None, integer(0, 20)),
            "echo": field(False, FLAG),
            "max_tokens": field(
                None,
                replace(
                    LIMIT,
                    taken=(0, -1, INT64_MAX),
                    refused=LIMIT.refused[1:],
                    reads=lambda value: value if value >= 0 else None,
                ),
                echo=True,
            ),
            "suffix": field(None, text()),
            "best_of": Field(None, integer(1, 8), lambda value: {"n": 8} if value == 8 else {}),
        },
    ),
    responses.ResponsesRequest: (
        {"model": "m", "input": "hi"},
        SHARED
        | VARIABLES
        | {
            "model": field(REQUIRED, LONG_NAME),
            "n": field(1, replace(integer(1, 8), taken=(1,), unstated=(2, 8))),
            "input": field(
                REQUIRED,
                replace(
                    list_of(lambda index: MESSAGE | {"content": [{"type": "input_text", "text": "a"}]}, 7, shortest=1),
                    refused=([], [7], 7),
                    unstated=([{"type": "message"}], [{"type": "item_reference", "id": "a"}]),
                ),
            ),
            "instructions": field(None, text()),
            "max_output_tokens": field(None, LIMIT),
            "background": field(False, FLAG),
            "previous_response_id": field(None, LONG_NAME),
            "store": field(None, FLAG),
            "top_logprobs": field(0, integer(0, 20), include=["message.output_text.logprobs"]),
            "include": field([], list_of(lambda index: "message.output_text.logprobs", 7, longest=32)),
            "text": field(None, nested({}, {"format": {"type": "text"}})),
            "reasoning": field(None, nested({}, {"effort": "low"})),
            "tools": field([], list_of(flat_tool, 7, longest=128)),
            "tool_choice": field(
                None, replace(CHOICE, taken=("none", "auto", "required", NAMED), unstated=({"type": "function"},))
            ),
            "parallel_tool_calls": field(True, FLAG),
            "truncation": field("disabled", choice("auto", "disabled")),
            "stream": field(False, FLAG),
            "stream_options": field(None, nested({})),
            "metadata": field(None, METADATA),
            "prompt_cache_key": field(None, LONG_NAME),
            "safety_identifier": field(None, LONG_NAME),
            "user": field(None, LONG_NAME),
        },
    ),
    generation.StreamOptions: (
        {},
        {
            "include_usage": field(False, FLAG),
            "continuous_usage_stats": field(False, FLAG),
        },
    ),
}
