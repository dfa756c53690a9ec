"""The fields of Anthropic's Messages and of their parts."""

from dataclasses import replace

from service.api.schema import message_blocks, messages
from tests.api.schema.generation_requests import SAMPLING
from tests.api.schema.parts_of_requests import MESSAGE
from tests.api.schema.values import (
    FLAG,
    INT32_MAX,
    LIMIT,
    LONG_NAME,
    OBJECT,
    REQUIRED,
    ROLE,
    Field,
    Values,
    choice,
    field,
    integer,
    list_of,
    nested,
    text,
)

TEXT = {"type": "text", "text": "a"}
BLOCKS = replace(list_of(lambda index: TEXT, 7), taken=([], [TEXT]))
TEXT_BLOCKS = replace(BLOCKS, refused=(*BLOCKS.refused, [{"type": "image"}]))
WHOLE_OR_BLOCKS = replace(
    BLOCKS, taken=("a", [TEXT]), reads=lambda value: [TEXT] if value == "a" else value
)  # a text is its one block
FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
READABLE = {
    "type": field(REQUIRED, text()),
    "text": field(None, text()),
    "title": field(None, text()),
    "source": field(None, Values(({}, {"type": "text", "data": "a"}, "a"), (7, []))),
    "tool_name": field(None, text()),
}
PROMPT = {
    "model": field(REQUIRED, LONG_NAME),
    "messages": field(REQUIRED, list_of(lambda index: MESSAGE | {"content": [TEXT]}, 7, shortest=1)),
    "system": field([], WHOLE_OR_BLOCKS),
    "tools": field([], list_of(lambda index: {"name": f"f{index}"}, 7, longest=128)),
    "tool_choice": field(None, nested({"type": "auto"}, {"type": "tool", "name": "f"}, refused=({"type": "other"},))),
    "thinking": field(None, nested({"type": "adaptive"}, {"type": "enabled", "display": "omitted"})),
    "output_config": field(None, nested({}, {"effort": "low"}, {"format": FORMAT})),
    "metadata": field(None, nested({}, {"user_id": "a"})),
}

# Of each object its least one, and its fields.
MESSAGE_REQUESTS: dict[type, tuple[dict[str, object], dict[str, Field]]] = {
    messages.CountTokensRequest: ({"model": "m", "messages": [MESSAGE]}, PROMPT),
    messages.MessagesRequest: (
        {"model": "m", "messages": [MESSAGE], "max_tokens": 5},
        PROMPT
        | {
            "max_tokens": field(REQUIRED, LIMIT),
            "temperature": SAMPLING["temperature"],
            "top_p": SAMPLING["top_p"],
            "top_k": field(None, integer(-1, INT32_MAX)),
            "stop_sequences": field([], list_of(lambda index: "a" * 1024, "a" * 1025, longest=16)),
            "stream": field(False, FLAG),
        },
    ),
    messages.InputMessage: (
        MESSAGE,
        {"role": field(REQUIRED, ROLE), "content": field(REQUIRED, WHOLE_OR_BLOCKS)},
    ),
    messages.MessagesTool: (
        {"name": "f"},
        {
            "type": field("custom", text()),
            "name": field(None, text()),
            "description": field(None, text()),
            "input_schema": field(None, OBJECT),
            "strict": field(False, FLAG),
        },
    ),
    messages.MessagesToolChoice: (
        {"type": "auto"},
        {
            "type": field(REQUIRED, choice("auto", "any", "tool", "none")),
            "name": field(None, text()),
            "disable_parallel_tool_use": field(False, FLAG),
        },
    ),
    messages.ThinkingConfig: (
        {"type": "adaptive"},
        {"type": field(REQUIRED, text()), "display": field(None, choice("summarized", "omitted"))},
    ),
    messages.OutputFormat: (
        FORMAT,
        {"type": field(REQUIRED, choice("json_schema")), "schema": field(REQUIRED, OBJECT)},
    ),
    messages.OutputConfig: ({}, {"effort": field(None, text()), "format": field(None, nested(FORMAT))}),
    messages.MessagesMetadata: ({}, {"user_id": field(None, text())}),
    message_blocks.TextBlock: (TEXT, {"type": field(REQUIRED, choice("text")), "text": field(REQUIRED, text())}),
    message_blocks.ResultBlock: (TEXT, READABLE | {"content": field(None, TEXT_BLOCKS)}),
    message_blocks.Block: (
        TEXT,
        READABLE
        | {
            "content": field(None, WHOLE_OR_BLOCKS),
            "id": field(None, text()),
            "name": field(None, text()),
            "input": field({}, Values(({}, {"a": [1]}, [], "cut", 7), ())),
            "tool_use_id": field(None, text()),
            "is_error": field(False, FLAG),
            "thinking": field(None, text()),
            "signature": field("", text()),
        },
    ),
}
