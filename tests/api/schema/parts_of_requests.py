"""The fields of the objects inside requests: messages, items, tools, choices among them, and formats."""

from dataclasses import replace

from service.api.schema import audio, chat, response_input, response_tools, responses, structured, tools
from tests.api.schema.values import (
    ARGUMENTS,
    FLAG,
    MAYBE,
    NAME,
    OBJECT,
    REQUIRED,
    ROLE,
    TOOL_NAME,
    Field,
    Values,
    choice,
    choice_or_blank,
    field,
    integer,
    list_of,
    nested,
    number,
    text,
)

MESSAGE = {"role": "user", "content": "hi"}
SCHEMA = {"name": "s", "schema": {"type": "object"}}
NAMED = {"type": "function", "name": "f"}


def tool(index=0):
    return {"type": "function", "function": {"name": f"f{index}"}}


def flat_tool(index=0):
    return {"type": "function", "name": f"f{index}"}


# An empty role of an item is none.
ROLE_OF_ITEM = replace(ROLE, refused=tuple(value for value in ROLE.refused if value != ""))


def parts(kind):
    items = list_of(lambda index: {"type": kind, "text": "a"}, 7)
    return replace(
        items,
        taken=("a", *items.taken),
        reads=lambda value: [{"type": kind, "text": value}] if isinstance(value, str) else value,
    )


FUNCTION = {
    "name": field(REQUIRED, TOOL_NAME),
    "description": field(None, text()),
    "parameters": field(None, OBJECT),
    "strict": field(False, FLAG),
}
IS_FUNCTION = field(REQUIRED, choice("function"))
FLAT_TOOL = FUNCTION | {
    "type": field(REQUIRED, Values(("function", "custom"), (7,))),  # others are left out
    "name": field(None, FUNCTION["name"].values),
    "format": field(None, nested({"type": "text"})),
}

# Of each kind of object its least one, and its fields.
PARTS: dict[type, tuple[dict[str, object], dict[str, Field]]] = {
    chat.Message: (
        {"role": "user"},
        {
            "role": field(REQUIRED, ROLE),
            "content": field(None, parts("text")),
            "name": field(None, MAYBE),
            "tool_calls": field(
                None,
                list_of(lambda index: {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}, 7),
            ),
            "tool_call_id": field(None, MAYBE),
            "reasoning_content": field(None, MAYBE),
            "reasoning": field(None, MAYBE),
        },
    ),
    chat.ContentPart: (
        {"type": "text", "text": "a"},
        {
            "type": field("text", choice_or_blank("text", "input_text", "output_text")),
            "text": field(REQUIRED, text()),
            "image_url": field(None, nested({"url": "data:,"})),
        },
    ),
    chat.ImageUrl: (
        {"url": "data:,"},
        {"url": field(REQUIRED, text()), "detail": field("auto", choice("auto", "low", "high"))},
    ),
    chat.ToolCall: (
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": ""}},
        {
            "id": field(None, MAYBE),
            "type": field("function", choice_or_blank("function")),
            "function": field(REQUIRED, nested({"name": "f", "arguments": "{}"})),
        },
    ),
    chat.FunctionCall: (
        {"name": "f", "arguments": ""},
        {
            "name": field(REQUIRED, text()),
            "arguments": field("{}", ARGUMENTS),
        },
    ),
    tools.Tool: (tool(), {"type": IS_FUNCTION, "function": field(REQUIRED, nested({"name": "f"}))}),
    tools.FunctionDefinition: ({"name": "f"}, FUNCTION),
    tools.NamedFunction: ({"name": "f"}, {"name": field(REQUIRED, text())}),
    tools.AllowedTool: (tool(), {"type": IS_FUNCTION, "function": field(REQUIRED, nested({"name": "f"}))}),
    tools.AllowedTools: (
        {"mode": "auto", "tools": [tool()]},
        {
            "mode": field(REQUIRED, choice("auto", "required")),
            "tools": field(REQUIRED, list_of(tool, 7, longest=128, shortest=1)),
        },
    ),
    tools.ToolChoice: (
        {"type": "function", "function": {"name": "f"}},
        {
            "type": field(REQUIRED, choice("none", "auto", "required", "function", "allowed_tools")),
            "function": field(None, nested({"name": "f"})),
            "allowed_tools": field(None, nested({"mode": "auto", "tools": [tool()]})),
        },
    ),
    structured.ResponseFormat: (
        {"type": "text"},
        {
            "type": field(REQUIRED, choice("text", "json_object", "json_schema")),
            "json_schema": field(None, nested(SCHEMA)),
        },
    ),
    structured.JsonSchemaFormat: (
        SCHEMA,
        {
            "name": field(None, text()),
            "description": field(None, text()),
            "schema": field(REQUIRED, OBJECT),
            "strict": field(False, FLAG),
        },
    ),
    structured.StructuredOutputs: (
        {},
        {
            "json": field(None, Values(({}, {"a": [1]}, "{}"), ([], 7))),
            "regex": field(None, text(shortest=1)),
            "choice": field(None, Values(([], ["a", "b"]), (["a", 7], "a", 7))),
            "grammar": field(None, text()),
            "json_object": field(None, Values((True,), (False, "true"))),
        },
    ),
    response_input.InputItem: (
        {},
        {
            "type": field(
                "message",
                # Others are left out.
                Values(("message", "function_call", "reasoning", "item_reference", "compaction"), (7,)),
            ),
            "id": field(None, text()),
            "status": field(None, text()),
            "role": field(None, ROLE_OF_ITEM),
            "content": field(None, parts("input_text")),
            "call_id": field(None, MAYBE),
            "name": field(None, MAYBE),
            "arguments": field(None, replace(ARGUMENTS, taken=tuple(v for v in ARGUMENTS.taken if v != ""))),
            "output": field(None, parts("input_text")),
            "encrypted_content": field(None, MAYBE),
        },
    ),
    response_input.InputPart: (
        {"type": "input_text", "text": "a"},
        {
            "type": field(
                REQUIRED, choice("input_text", "output_text", "reasoning_text", "refusal", "summary_text", "text")
            ),
            "text": field(REQUIRED, text()),
            "image_url": field(None, MAYBE),
            "detail": field("auto", choice_or_blank("auto", "low", "high")),
        },
    ),
    response_tools.CustomFormat: (
        {"type": "text"},
        {
            "type": field(REQUIRED, choice("text", "grammar")),
            "syntax": field(None, choice("lark", "regex")),
            "definition": field(None, text(64 * 1024)),
        },
    ),
    response_tools.NamespacedTool: (NAMED, FLAT_TOOL),
    response_tools.ResponseTool: (NAMED, FLAT_TOOL | {"tools": field(None, list_of(flat_tool, 7, longest=128))}),
    response_tools.NamedTool: (
        NAMED,
        {
            "type": field(REQUIRED, choice("function", "custom", "local_shell")),
            "name": field(None, text()),
            "namespace": field(None, text()),
        },
    ),
    response_tools.ChosenTool: (
        NAMED,
        {
            "type": field(REQUIRED, choice("function", "custom", "local_shell", "allowed_tools")),
            "name": field(None, text()),
            "namespace": field(None, text()),
            "mode": field(None, choice("auto", "required")),
            "tools": field(None, list_of(flat_tool, 7, longest=128, shortest=1)),
        },
    ),
    responses.TextConfig: ({}, {"format": field(None, nested({"type": "text"}))}),
    responses.TextFormat: (
        {"type": "text"},
        {
            "type": field(REQUIRED, choice("text", "json_object", "json_schema")),
            "name": field(None, NAME),
            "description": field(None, text()),
            "schema": field(None, OBJECT),
            "strict": field(False, FLAG),
        },
    ),
    audio.ServerVad: (
        {"type": "server_vad"},
        {
            "type": field(REQUIRED, choice("server_vad")),
            "threshold": field(0.5, number(0.01, 0.99)),
            "prefix_padding_ms": field(300, integer(0, 10_000)),
            "silence_duration_ms": field(200, integer(0, 60_000)),
        },
    ),
    responses.ReasoningConfig: ({}, {"effort": field(None, text())}),
    responses.ResponseStreamOptions: ({}, {}),
}
