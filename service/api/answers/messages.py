"""Anthropic's messages and of the events of their streams.

Source: https://docs.anthropic.com/en/api/messages, https://docs.anthropic.com/en/api/errors
"""

from typing import Any, Literal, TypedDict


class ThinkingBlock(TypedDict):
    """The thinking before the answer, of models that write it between tags."""

    type: Literal["thinking"]
    thinking: str
    """Empty if the request's `thinking.display` is `omitted`."""
    signature: str
    """To be sent back with the block: thinking that this service has not written is not read."""


class AnswerText(TypedDict):
    """The text."""

    type: Literal["text"]
    text: str
    citations: None


class ToolUseBlock(TypedDict):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: str
    """To be repeated in the block with the call's result."""
    name: str
    caller: dict[str, str]
    """Always the model itself."""
    input: dict[str, Any]


class ThinkingTokens(TypedDict):
    """What the output consists of."""

    thinking_tokens: int
    """Tokens of the thinking, its tags included; 0 for models that write none between tags."""


class MessageUsageSoFar(TypedDict):
    """Token counts of a message, as an event of a stream has them."""

    input_tokens: int
    """Tokens of the prompt that were computed."""
    cache_creation_input_tokens: int
    """Always 0: keeping a prefix has no price of its own."""
    cache_read_input_tokens: int
    """Tokens of the prompt that were found in the prefix cache."""
    output_tokens: int
    output_tokens_details: ThinkingTokens


class MessageUsage(MessageUsageSoFar):
    """Token counts of a message."""

    cache_creation: None
    inference_geo: None
    server_tool_use: None
    service_tier: Literal["standard"]


class MessageEnd(TypedDict):
    """Why a message has ended."""

    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    """Null at the beginning of a stream."""
    stop_sequence: str | None
    """Of `stop_sequences`, the one that ended the text."""
    stop_details: None


AnswerBlock = ThinkingBlock | AnswerText | ToolUseBlock


class MessageObject(MessageEnd):
    """The answer of POST /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnswerBlock]
    container: None
    usage: MessageUsage


class MessageEvent(TypedDict):
    """One event of a stream, whose name is its type; which other fields it has depends on that."""

    type: str


class MessageTokens(TypedDict):
    """The length of a prompt."""

    input_tokens: int


class MessageErrorDetails(TypedDict):
    """What the error is about."""

    error_code: str | None
    param: str | None
    """The field at fault."""


class MessageErrorBody(TypedDict):
    """Why there is no answer."""

    type: str
    message: str
    details: MessageErrorDetails


class MessageError(TypedDict):
    """The answer to a request that fails, as Anthropic states it."""

    type: Literal["error"]
    error: MessageErrorBody
    request_id: str
