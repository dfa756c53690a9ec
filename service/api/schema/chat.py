"""The body of POST /v1/chat/completions: the fields that are supported, and those that are refused.

Source: https://platform.openai.com/docs/api-reference/chat/create
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, override

from pydantic import BeforeValidator, Field

from service.api.schema.generation import INT64_MAX, MAX_NAME_CHARS, REMEDIES, VLLM_FIELDS, GenerationRequest
from service.api.schema.metadata import Metadata
from service.api.schema.structured import ResponseFormat
from service.api.schema.template import TemplateFields
from service.api.schema.tools import MAX_TOOLS, Tool, ToolChoice, ToolWord, as_tool_choice, check_tools
from service.api.schema.wire import NeutralValues, WireObject
from service.engine.limits import MAX_LOGPROBS
from service.errors import InvalidParameter, MissingParameter
from service.text.grammar.definition import GrammarDefinition

_UNSUPPORTED_FIELDS: NeutralValues = {
    **VLLM_FIELDS,
    "add_special_tokens": (False,),
    "audio": (),
    "chat_template": (),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "include_reasoning": (True,),
    "mm_processor_kwargs": (),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory", "in-memory"),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
# Fields of an answer that the official client sends back with the next request.
_REPLAYED_FIELDS: NeutralValues = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "refusal": (),
    "type": ("text",),  # lm-eval marks its messages like parts
}


def _as_parts(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


class TextPart(WireObject):
    """A text part of a message; images, audio and files are not supported."""

    type: Literal["text"]
    text: str


class FunctionCall(WireObject):
    """The function of an earlier tool call."""

    name: str
    arguments: str  # a JSON object, serialized
    parsed_arguments: Any = None  # which the official clients add to an answer for its reader; the text counts


class ToolCall(WireObject):
    """A tool call that the assistant made earlier."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(WireObject):
    """One message of a chat."""

    neutral_values: ClassVar[NeutralValues] = _REPLAYED_FIELDS

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        Annotated[
            list[TextPart],
            Field(fail_fast=True),
            BeforeValidator(_as_parts, json_schema_input_type=str | list[TextPart]),
        ]
        | None
    ) = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None  # vLLM's, of an earlier answer
    reasoning: str | None = None  # its newer name
    parsed: Any = None  # which the official clients add to an answer for its reader; the content counts

    @property
    def thinking(self) -> str | None:
        """The thinking before an earlier answer, under either of its names."""
        return self.reasoning or self.reasoning_content or None


class ChatCompletionRequest(GenerationRequest, TemplateFields):
    """The body of POST /v1/chat/completions."""

    neutral_values: ClassVar[NeutralValues] = _UNSUPPORTED_FIELDS
    bulk: ClassVar[Mapping[str, Any]] = {"messages": ()}
    nested: ClassVar[dict[str, type[WireObject]]] = {
        **GenerationRequest.nested,
        "messages": Message,
        "response_format": ResponseFormat,
        "tool_choice": ToolChoice,
        "tools": Tool,
    }
    remedies: ClassVar[Mapping[str, str]] = {
        **REMEDIES,
        "functions": "send 'tools'.",
        "function_call": "send 'tool_choice'.",
    }

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: int | None = Field(default=None, ge=1, le=INT64_MAX)
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(default_factory=list)
    tool_choice: (
        Annotated[
            ToolChoice,
            BeforeValidator(as_tool_choice, json_schema_input_type=ToolWord | ToolChoice),
        ]
        | None
    ) = None  # None is `auto`
    parallel_tool_calls: bool = True
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MAX_LOGPROBS)
    metadata: Metadata | None = None
    # OpenAI routes requests of one key to one machine; here every request finds every prefix.
    prompt_cache_key: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    safety_identifier: str | None = Field(default=None, max_length=MAX_NAME_CHARS)  # the newer name of `user`

    @property
    @override
    def end_user(self) -> str | None:
        return self.safety_identifier if self.safety_identifier is not None else self.user

    @property
    @override
    def requested_max_tokens(self) -> tuple[int | None, str]:
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens, "max_completion_tokens"
        return self.max_tokens, "max_tokens"

    @property
    @override
    def num_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @property
    @override
    def has_grammar(self) -> bool:
        return super().has_grammar or (self.response_format is not None and self.response_format.type != "text")

    @property
    def may_call_tools(self) -> bool:
        """Whether answers may have tool calls; otherwise the prompt does not show the tools either."""
        return bool(self.tools) and (self.tool_choice is None or self.tool_choice.type != "none")

    @override
    def grammar_definition(self) -> GrammarDefinition | None:
        return super().grammar_definition() or (self.response_format and self.response_format.definition())

    @override
    def check_consistency(self) -> None:
        """Refuse two limits or formats that differ, and `top_logprobs` without `logprobs`, as OpenAI does."""
        super().check_consistency()
        if self.tools or self.tool_choice is not None:
            check_tools(self.tools, self.tool_choice)
        self.check_rendering()
        _check_tool_results(self.messages)
        for index, message in enumerate(self.messages):
            if None not in (message.reasoning, message.reasoning_content):
                _check_same_thinking(message, f"messages[{index}]")
        if self.response_format is not None:
            self.response_format.check()
            if self.response_format.type != "text" and self.structured_outputs is not None:
                message = "'structured_outputs' contradicts 'response_format'; send one."
                raise InvalidParameter(message, param="structured_outputs")
        if self.top_logprobs and not self.logprobs:
            raise InvalidParameter("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise InvalidParameter("'max_tokens' contradicts 'max_completion_tokens'; send one.", param="max_tokens")


def _check_same_thinking(message: Message, path: str) -> None:
    if message.reasoning != message.reasoning_content:
        text = f"'{path}.reasoning' contradicts '{path}.reasoning_content'; send one."
        raise InvalidParameter(text, param=f"{path}.reasoning")


def _check_tool_results(messages: Sequence[Message]) -> None:
    """Check that each result answers a call before it.

    Raises:
        MissingParameter, InvalidParameter: a result names no call, or one that was not made.
    """
    called: set[str] = set()
    for index, message in enumerate(messages):
        called.update(call.id for call in message.tool_calls or ())
        if message.role != "tool":
            continue
        param = f"messages[{index}].tool_call_id"
        if message.tool_call_id is None:
            raise MissingParameter(param)
        if message.tool_call_id not in called:
            text = f"Invalid '{param}': no earlier message of the assistant has a call with this id."
            raise InvalidParameter(text, param=param)
