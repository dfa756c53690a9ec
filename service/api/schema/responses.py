"""The body of POST /v1/responses, and what it asks for.

Source: https://platform.openai.com/docs/api-reference/responses/create
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, override

from pydantic import BeforeValidator, Field

from service.api.conversation import (
    ANY_CHOICE,
    ANY_OBJECT,
    AnswerFormat,
    Choice,
    Conversation,
    Effort,
    Function,
    Options,
    OwnThinking,
    TextPart,
    Turn,
    check_tools,
)
from service.api.schema.generation import HINTS, MAX_NAME_CHARS, REFUSED, REMEDIES, MaxTokens, SharedFields
from service.api.schema.metadata import Metadata
from service.api.schema.other_names import with_own_names
from service.api.schema.response_input import InputItem, as_items, check_results, turns_of
from service.api.schema.response_tools import (
    ChosenTool,
    OfferedTool,
    ResponseTool,
    as_response_choice,
    offered_tools,
    unenforced_formats,
)
from service.api.schema.structured import GRAMMARS_OF_FORMATS
from service.api.schema.structured import NAME_PATTERN as SCHEMA_NAME_PATTERN
from service.api.schema.template import VariableFields
from service.api.schema.tools import MAX_TOOLS, NAME_PATTERN, ToolWord
from service.api.schema.wire import ANY, NeutralValues, WireObject
from service.engine.limits import MAX_LOGPROBS
from service.errors import InvalidParameter, MissingParameter, UnsupportedParameter

INCLUDED_LOGPROBS = "message.output_text.logprobs"
INCLUDED_THINKING = "reasoning.encrypted_content"

MAX_INCLUDED = 32
NAME = re.compile(NAME_PATTERN)

_REFUSED: NeutralValues = {**REFUSED, "conversation": (), "prompt": (), "response_format": ({"type": "text"},)}
_HINTS: NeutralValues = {
    **HINTS,
    "access_programs": (),
    "client_metadata": ANY,  # of the client's own statistics
    "context_management": ([],),
    "image": (),
    "max_tool_calls": (),
    "moderation": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory", "in-memory"),
    "service_tier": ("auto", "default"),
}


class TextFormat(WireObject):
    """Whether the text is free, any JSON object, or JSON that satisfies a schema."""

    refused: ClassVar[NeutralValues] = GRAMMARS_OF_FORMATS

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(default=None, pattern=SCHEMA_NAME_PATTERN)
    """The schema's name."""
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    """A JSON Schema. A keyword that cannot be enforced is refused by its path."""
    strict: bool = False
    """Whether OpenAI's rules of strict schemas apply too; the schema is enforced either way."""


class TextConfig(WireObject):
    """The form of the answer's text."""

    hints: ClassVar[NeutralValues] = {"verbosity": ("medium",)}

    format: TextFormat | None = None
    """Whether the text is free, a JSON object, or JSON that satisfies a schema."""


class ReasoningConfig(WireObject):
    """How long the model thinks."""

    hints: ClassVar[NeutralValues] = {"generate_summary": (), "summary": ()}

    effort: str | None = None
    """How long to think, for chat templates that read it; `none` where thinking has a switch."""


class ResponseStreamOptions(WireObject):
    """Options of a stream, none of which has an effect here."""

    hints: ClassVar[NeutralValues] = {"include_obfuscation": (False,)}


Items = Annotated[list[InputItem], Field(min_length=1, fail_fast=True)]


class ResponsesRequest(SharedFields, VariableFields):
    """The body of POST /v1/responses."""

    hints: ClassVar[NeutralValues] = _HINTS
    refused: ClassVar[NeutralValues] = _REFUSED
    bulk: ClassVar[Mapping[str, Any]] = {"input": ""}
    remedies: ClassVar[Mapping[str, str]] = {
        **REMEDIES,
        "conversation": "send 'previous_response_id', or the earlier items as 'input'.",
        "response_format": "send 'text': {'format': …}.",
    }

    model: str = Field(max_length=MAX_NAME_CHARS)
    input: Annotated[Items, BeforeValidator(as_items, json_schema_input_type=str | Items)]
    """What to answer: a text, or the items of the conversation so far."""
    instructions: str | None = None
    """The system's message, before the input."""
    max_output_tokens: MaxTokens = None
    """The most tokens of the answer. Without it, or with -1: the rest of the context."""
    top_logprobs: int = Field(default=0, ge=0, le=MAX_LOGPROBS)
    include: Annotated[list[str], Field(max_length=MAX_INCLUDED, fail_fast=True)] = Field(default_factory=list)
    """What the answer carries besides the text: `message.output_text.logprobs`, `reasoning.encrypted_content`."""
    text: TextConfig | None = None
    """The form of the answer's text."""
    reasoning: ReasoningConfig | None = None
    """How long to think."""
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(default_factory=list)
    tool_choice: (
        Annotated[ChosenTool, BeforeValidator(as_response_choice, json_schema_input_type=ToolWord | ChosenTool)] | None
    ) = None  # None is `auto`
    """Whether tools may (`auto`) or must be called, and which (`function`, `allowed_tools`)."""
    parallel_tool_calls: bool = True
    """Whether one answer may have several calls."""
    truncation: Literal["auto", "disabled"] = "disabled"
    """`auto` drops the oldest turns of a chat that is longer than the context; `disabled` refuses it."""
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    """What the stream carries besides the text."""
    background: bool = False
    """Whether the response goes on without the client, which asks for it by its id. Needs `store`."""
    previous_response_id: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """The response whose conversation the input continues; `instructions` are not carried over."""
    store: bool | None = None  # None is true where responses can be kept
    """Whether the response is kept; true where responses are kept."""
    metadata: Metadata | None = None
    """The client's own notes, which the answer carries."""
    prompt_cache_key: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """Without effect: every request finds every cached prefix of its API key."""
    safety_identifier: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """The newer name of `user`."""
    user: str | None = Field(default=None, max_length=MAX_NAME_CHARS)

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        return with_own_names(document, "max_output_tokens", own_limits=("max_output_tokens",))

    @property
    def has_logprobs(self) -> bool:
        """Whether the answer carries log-probabilities."""
        return INCLUDED_LOGPROBS in self.include

    @property
    def has_sealed_thinking(self) -> bool:
        """Whether the answer carries its thinking as a text that no other reads."""
        return INCLUDED_THINKING in self.include

    @property
    def stated_effort(self) -> str | None:
        """The degree of thinking, under OpenAI's name or a chat's."""
        stated = None if self.reasoning is None else self.reasoning.effort
        return self.reasoning_effort if stated is None else stated

    @cached_property
    def offered_tools(self) -> Sequence[OfferedTool]:
        """The functions that the model is shown."""
        return tuple(offered_tools(self.tools))

    @override
    def check_consistency(self) -> None:
        """Refuse items that are incomplete, a format without what it needs, and `top_logprobs` without effect."""
        super().check_consistency()
        if self.n != 1:
            raise InvalidParameter("Invalid 'n': a response has one answer.", param="n")
        known = (INCLUDED_LOGPROBS, INCLUDED_THINKING)
        self.ignore(f"include[{index}]" for index, name in enumerate(self.include) if name not in known)
        for index, tool in enumerate(self.tools):
            tool.check(f"tools[{index}]")
        self.ignore(unenforced_formats(self.offered_tools, is_required=self._is_call_required))
        for index, item in enumerate(self.input):
            item.check(f"input[{index}]")
        self.check_results()
        self._check_background()
        if self.tool_choice is not None:
            self.tool_choice.check()
        if self.text is not None and self.text.format is not None:
            _check_format(self.text.format)
        if self.top_logprobs and not self.has_logprobs:
            message = f"'top_logprobs' needs '{INCLUDED_LOGPROBS}' in 'include'."
            raise InvalidParameter(message, param="top_logprobs")

    def check_results(self) -> None:
        """Check that each result answers a call, as far as the calls are here and not in an earlier response.

        Raises:
            InvalidParameter: no earlier item is the call of a result.
        """
        if self.previous_response_id is None:
            check_results(self.input)

    def _check_background(self) -> None:
        if self.background and self.stream:
            message = "a response in the background is not streamed. Ask for it with GET /v1/responses/{response_id}."
            raise UnsupportedParameter("stream", message)
        if self.background and self.store is False:
            message = "'background' needs 'store', since the response is kept until it is asked for."
            raise InvalidParameter(message, param="background")

    @property
    def _is_call_required(self) -> bool:
        return self.tool_choice is not None and self.tool_choice.is_required

    @property
    def answer_format(self) -> AnswerFormat | None:
        """The form of the answer's text, None for any; raises InvalidParameter for two."""
        stated, at = None if self.text is None else self.text.format, "text.format"
        if stated is None or stated.type == "text":
            return None if self.structured_outputs is None else self.structured_outputs.as_format()
        if self.structured_outputs is not None:
            message = f"'structured_outputs' contradicts '{at}'; send one."
            raise InvalidParameter(message, param="structured_outputs")
        if stated.schema_ is None:
            return AnswerFormat("json", ANY_OBJECT, at, at)
        return AnswerFormat("json", stated.schema_, f"{at}.schema", at, is_strict=stated.strict)

    def options(self) -> Options:
        """Return how the answer is sampled, when it ends, and what comes with it."""
        return Options(
            **self.shared_options(),
            model=self.model,
            stream=self.stream,
            user=self.user if self.safety_identifier is None else self.safety_identifier,
            format=self.answer_format,
            max_tokens=self.max_output_tokens,
            max_tokens_at="max_output_tokens",
            num_logprobs=self.top_logprobs if self.has_logprobs else None,
        )

    def conversation(self, own_thinking: OwnThinking) -> Conversation:
        """Return what the request asks for.

        Args:
            own_thinking: returns the thinking that this service has sealed, None for another's.
        """
        functions, choice = self._functions(), self._choice()
        check_tools(functions, choice)
        turns, unreadable = self._turns(own_thinking)
        if self.instructions is not None:
            at = "instructions"
            turns = [Turn(role="system", parts=(TextPart(self.instructions, at),), at=at), *turns]
        level, has_own = self.stated_effort, self.reasoning is not None and self.reasoning.effort is not None
        effort = None if level is None else Effort(level, "reasoning.effort" if has_own else "reasoning_effort")
        return Conversation(
            turns=turns,
            at="input",
            options=self.options(),
            tools=functions,
            choice=choice,
            allows_several_calls=self.parallel_tool_calls,
            effort=self.first_effort(effort),
            variables=self.chat_template_kwargs,
            drops_oldest=self.truncation == "auto",
            ignored=unreadable,
        )

    def _turns(self, own_thinking: OwnThinking) -> tuple[list[Turn], list[str]]:
        return turns_of(self.input, own_thinking)

    def _functions(self) -> list[Function]:
        functions = [tool.as_function() for tool in self.offered_tools]
        for function in functions:
            if NAME.fullmatch(function.name) is None:
                param = function.name_at
                message = f"Invalid '{param}': String should match pattern '{NAME_PATTERN}'."
                raise InvalidParameter(message, param=param)
        return functions

    def _choice(self) -> Choice:
        return ANY_CHOICE if self.tool_choice is None else self.tool_choice.as_choice()


def _check_format(text_format: TextFormat) -> None:
    is_schema = text_format.type == "json_schema"
    for name, value in (("name", text_format.name), ("schema", text_format.schema_)):
        if is_schema and value is None:
            raise MissingParameter(f"text.format.{name}")
        if not is_schema and value is not None:
            param = f"text.format.{name}"
            raise InvalidParameter(f"'{param}' needs 'text.format.type' to be 'json_schema'.", param=param)
