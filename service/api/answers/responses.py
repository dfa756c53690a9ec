"""Responses and of the events of their streams.

Source: https://platform.openai.com/docs/api-reference/responses/object, .../responses-streaming
"""

from typing import Any, Literal, NotRequired, TypedDict

from service.api.answers.generation import PromptTokensDetails, TokenLogprob

type ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(TypedDict):
    """The text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[dict[str, Any]]
    """Always empty."""
    logprobs: list[TokenLogprob]
    """If `include` asks for them."""


class OutputMessage(TypedDict):
    """The assistant's message."""

    type: Literal["message"]
    id: str
    status: ItemStatus
    """`incomplete` if a limit on tokens ended it."""
    role: Literal["assistant"]
    content: list[OutputText]


class _Call(TypedDict):
    call_id: str
    """To be repeated in the item with the call's output."""
    status: ItemStatus


class OutputCallHead(_Call):
    """What calls of functions and custom tools have in common."""

    namespace: NotRequired[str | None]
    """Of a tool of a namespace."""
    name: str


class OutputCall(OutputCallHead):
    """A call of a function."""

    type: Literal["function_call"]
    id: str
    arguments: str
    """A JSON object, serialized, which satisfies the function's schema unless the status is `incomplete`."""


class OutputCustomCall(OutputCallHead):
    """A call of a custom tool."""

    type: Literal["custom_tool_call"]
    id: str
    input: str
    """The text, which follows the tool's grammar unless the status is `incomplete`."""


class OutputShellCall(_Call):
    """A call of the local shell."""

    type: Literal["local_shell_call"]
    id: str
    action: dict[str, Any]
    """The command, empty if the status is `incomplete`."""


class ReasoningText(TypedDict):
    """The text of the thinking."""

    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(TypedDict):
    """The thinking before the answer, of models that write it between tags."""

    type: Literal["reasoning"]
    id: str
    status: ItemStatus
    summary: list[dict[str, Any]]
    """Always empty."""
    content: list[ReasoningText]
    encrypted_content: NotRequired[str | None]
    """The same for clients that keep it and send it back, if `include` asks for it."""


class CachedTokens(PromptTokensDetails):
    """Where the tokens of the input came from."""

    cache_write_tokens: int
    """Always 0: keeping a prefix has no price of its own."""


OutputItem = OutputReasoning | OutputMessage | OutputCall | OutputCustomCall | OutputShellCall


class ReasoningTokens(TypedDict):
    """What the output consists of."""

    reasoning_tokens: int
    """Tokens of the thinking, its tags included; 0 for models that write none between tags."""


class ResponseUsage(TypedDict):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class IncompleteDetails(TypedDict):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseError(TypedDict):
    """Why a response in the background failed."""

    code: Literal["server_error", "invalid_prompt"]
    message: str


ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]


class ResponseObject(TypedDict):
    """A response; fields that a request has are repeated as they were understood."""

    id: str
    object: Literal["response"]
    created_at: int
    """Unix time in seconds."""
    completed_at: int | None
    status: ResponseStatus
    incomplete_details: IncompleteDetails | None
    error: ResponseError | None
    background: bool
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None
    """Null in the first events of a stream."""
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    previous_response_id: str | None
    store: bool
    """Whether the response is kept."""
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    max_tool_calls: None
    prompt_cache_key: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    service_tier: Literal["default"]
    top_logprobs: int
    truncation: Literal["auto", "disabled"]
    user: str | None


class DeletedResponse(TypedDict):
    """The answer of DELETE /v1/responses/{response_id}."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItemList(TypedDict):
    """A page of the items that a response was made from."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    """Items as a request's `input` has them, each with an `id`."""
    first_id: str | None
    last_id: str | None
    """The `after` of the next page."""
    has_more: bool


class ResponseEvent(TypedDict):
    """One event of a stream, whose name is its type; which other fields it has depends on that."""

    type: str
    sequence_number: int
    """From 0 on."""
