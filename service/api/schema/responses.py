"""The body of POST /v1/responses, and the chat that it means.

Source: https://platform.openai.com/docs/api-reference/responses/create
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, override

from pydantic import BeforeValidator, Field

from service.api.schema.generation import HINTS, MAX_NAME_CHARS, MaxTokens, TopP
from service.api.schema.metadata import Metadata
from service.api.schema.response_input import InputItem, as_items, check_results, messages_of
from service.api.schema.structured import NAME_PATTERN
from service.api.schema.tools import MAX_TOOLS, ToolWord, as_tool_choice
from service.api.schema.tools import NAME_PATTERN as TOOL_NAME_PATTERN
from service.api.schema.wire import NeutralValues, WireObject
from service.engine.limits import MAX_LOGPROBS
from service.errors import InvalidParameter, MissingParameter

INCLUDED_LOGPROBS = "message.output_text.logprobs"

_REFUSED: NeutralValues = {"background": (False,), "conversation": (), "previous_response_id": (), "prompt": ()}
_HINTS: NeutralValues = {
    **HINTS,
    "access_programs": (),
    "client_metadata": ({},),
    "context_management": ([],),
    "image": (),
    "max_tool_calls": (),
    "min_p": (0, 0.0),  # this and the next few are what SGLang's router and smg write where a client wrote nothing
    "moderation": (),
    "priority": (0,),
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory", "in-memory"),
    "repetition_penalty": (1, 1.0),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "top_k": (-1, 0),
    "truncation": ("disabled",),
}


class FunctionTool(WireObject):
    """A function that the model may call; functions are the only tools."""

    supported_types: ClassVar[tuple[str, ...]] = ("function",)

    type: Literal["function"]
    name: str = Field(pattern=TOOL_NAME_PATTERN)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False  # whether OpenAI's rules of strict schemas apply, and all of the schema must be enforced


class NamedTool(WireObject):
    """One of the functions that may be called."""

    supported_types: ClassVar[tuple[str, ...]] = ("function",)

    type: Literal["function"]
    name: str


class ChosenTool(WireObject):
    """Whether tools may or must be called, and which."""

    nested: ClassVar[dict[str, type[WireObject]]] = {"tools": NamedTool}
    supported_types: ClassVar[tuple[str, ...]] = ("function", "allowed_tools")

    type: ToolWord | Literal["function", "allowed_tools"]
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)] | None = None

    def check(self) -> None:
        """Check that the choice has what its type consists of, and nothing else."""
        for name, kind in (("name", "function"), ("mode", "allowed_tools"), ("tools", "allowed_tools")):
            param, is_stated = f"tool_choice.{name}", getattr(self, name) is not None
            if kind == self.type and not is_stated:
                raise MissingParameter(param)
            if kind != self.type and is_stated:
                raise InvalidParameter(f"'{param}' needs 'tool_choice.type' to be '{kind}'.", param=param)

    def as_stated(self) -> str | dict[str, Any]:
        """Return the choice as the client stated it."""
        return self.model_dump(exclude_none=True) if self.type in self.supported_types else self.type

    def as_in_chats(self) -> str | dict[str, Any]:
        """Return the choice as a chat states it."""
        if self.type not in self.supported_types:
            return self.type
        if self.type == "function":
            return {"type": "function", "function": {"name": self.name}}
        tools = [{"type": "function", "function": {"name": tool.name}} for tool in self.tools or ()]
        return {"type": "allowed_tools", "allowed_tools": {"mode": self.mode, "tools": tools}}


class TextFormat(WireObject):
    """Whether the text is free, any JSON object, or JSON that satisfies a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(default=None, pattern=NAME_PATTERN)
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool = False


class TextConfig(WireObject):
    """The form of the answer's text."""

    hints: ClassVar[NeutralValues] = {"verbosity": ("medium",)}
    nested: ClassVar[dict[str, type[WireObject]]] = {"format": TextFormat}

    format: TextFormat | None = None


class ReasoningConfig(WireObject):
    """How long the model thinks."""

    hints: ClassVar[NeutralValues] = {"generate_summary": (), "summary": ()}

    effort: str | None = None


class ResponseStreamOptions(WireObject):
    """Options of a stream, none of which has an effect here."""

    hints: ClassVar[NeutralValues] = {"include_obfuscation": (False,)}


Items = Annotated[list[InputItem], Field(min_length=1, fail_fast=True)]


class ResponsesRequest(WireObject):
    """The body of POST /v1/responses."""

    hints: ClassVar[NeutralValues] = _HINTS
    refused: ClassVar[NeutralValues] = _REFUSED
    bulk: ClassVar[Mapping[str, Any]] = {"input": ()}
    remedies: ClassVar[Mapping[str, str]] = {
        "conversation": "send the earlier items as 'input'.",
        "previous_response_id": "answers are not stored. Send the earlier items as 'input'.",
    }
    nested: ClassVar[dict[str, type[WireObject]]] = {
        "input": InputItem,
        "reasoning": ReasoningConfig,
        "stream_options": ResponseStreamOptions,
        "text": TextConfig,
        "tool_choice": ChosenTool,
        "tools": FunctionTool,
    }

    model: str = Field(max_length=MAX_NAME_CHARS)
    input: Annotated[Items, BeforeValidator(as_items, json_schema_input_type=str | Items)]
    instructions: str | None = None
    max_output_tokens: MaxTokens = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: TopP | None = None
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)  # Open Responses'
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)  # Open Responses'
    top_logprobs: int = Field(default=0, ge=0, le=MAX_LOGPROBS)
    include: list[Literal["message.output_text.logprobs"]] = Field(default_factory=list)
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(default_factory=list)
    tool_choice: (
        Annotated[ChosenTool, BeforeValidator(as_tool_choice, json_schema_input_type=ToolWord | ChosenTool)] | None
    ) = None  # None is `auto`
    parallel_tool_calls: bool = True
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    metadata: Metadata | None = None
    prompt_cache_key: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    safety_identifier: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    user: str | None = Field(default=None, max_length=MAX_NAME_CHARS)

    @property
    def has_logprobs(self) -> bool:
        """Whether the answer carries log-probabilities."""
        return INCLUDED_LOGPROBS in self.include

    @override
    def check_consistency(self) -> None:
        """Refuse items that are incomplete, a format without what it needs, and `top_logprobs` without effect."""
        for index, item in enumerate(self.input):
            item.check(f"input[{index}]")
        check_results(self.input)
        if self.tool_choice is not None:
            self.tool_choice.check()
        if self.text is not None and self.text.format is not None:
            _check_format(self.text.format)
        if self.top_logprobs and not self.has_logprobs:
            message = f"'top_logprobs' needs '{INCLUDED_LOGPROBS}' in 'include'."
            raise InvalidParameter(message, param="top_logprobs")

    def as_chat(self) -> dict[str, Any]:
        """Return the body of the chat that has the same answer."""
        instructions = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        chat: dict[str, Any] = {
            "model": self.model,
            "messages": [*instructions, *messages_of(self.input)],
            "max_completion_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logprobs": self.has_logprobs,
            "top_logprobs": self.top_logprobs,
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
            "response_format": self._response_format(),
            "tools": [
                {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}
                for tool in self.tools
            ],
            "tool_choice": None if self.tool_choice is None else self.tool_choice.as_in_chats(),
            "parallel_tool_calls": self.parallel_tool_calls,
            "safety_identifier": self.safety_identifier,
            "user": self.user,
        }
        return {name: value for name, value in chat.items() if value is not None}

    def _response_format(self) -> dict[str, Any] | None:
        if self.text is None or self.text.format is None:
            return None
        stated = self.text.format.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
        kind = self.text.format.type
        return {"type": kind, "json_schema": stated} if kind == "json_schema" else {"type": kind}


def _check_format(text_format: TextFormat) -> None:
    is_schema = text_format.type == "json_schema"
    for name, value in (("name", text_format.name), ("schema", text_format.schema_)):
        if is_schema and value is None:
            raise MissingParameter(f"text.format.{name}")
        if not is_schema and value is not None:
            param = f"text.format.{name}"
            raise InvalidParameter(f"'{param}' needs 'text.format.type' to be 'json_schema'.", param=param)
