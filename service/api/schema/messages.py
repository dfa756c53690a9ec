"""The bodies of POST /v1/messages and /v1/messages/count_tokens, and what they ask for.

Source: https://docs.anthropic.com/en/api/messages, https://docs.anthropic.com/en/api/messages-count-tokens
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, override

from pydantic import Field

from service.api.conversation import (
    ANY_CHOICE,
    OFF,
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
from service.api.schema.chat import Role
from service.api.schema.generation import (
    MAX_NAME_CHARS,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    MaxTokens,
    Temperature,
    TopK,
    TopP,
)
from service.api.schema.message_blocks import CACHE_HINTS, Block, TextBlock, joined, turns_of
from service.api.schema.other_names import GRAMMAR_PROMISES, LIMITS
from service.api.schema.tools import MAX_TOOLS, NAME_PATTERN
from service.api.schema.wire import ANY, NeutralValues, OrText, WireObject
from service.errors import InvalidParameter, MissingParameter
from service.text.grammar.strict import check_strict

# Claude Code's first system block differs from request to request, so no request would find the prefix of another.
BILLING_LINE = "x-anthropic-billing-header:"
# What clears nothing.
_KEEP_ALL = {"type": "clear_thinking_20251015", "keep": "all"}
_HINTS: NeutralValues = {
    **CACHE_HINTS,
    "container": (),
    "context_management": ({}, {"edits": []}, {"edits": [_KEEP_ALL]}),
    "diagnostics": (),
    "inference_geo": (),
    "mcp_servers": ([],),
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "user_profile_id": (),
    "workspace_id": (),
}
# Fields of an answer that clients send back with the next request.
_REPLAYED_FIELDS: NeutralValues = dict.fromkeys(
    ("container", "context_management", "diagnostics", "id", "model", "stop_details", "stop_reason", "stop_sequence",
     "type", "usage"),
    ANY,
)  # fmt: skip


class InputMessage(WireObject):
    """One turn of the conversation."""

    hints: ClassVar[NeutralValues] = _REPLAYED_FIELDS

    role: Role
    """Who speaks: `user`, `assistant`, `system`, which may do so in the middle too, or a role that the model's chat
    template writes."""
    content: Annotated[list[Block], Field(fail_fast=True), OrText()]
    """The text, or its blocks."""


class MessagesTool(WireObject):
    """A tool that the client runs; a tool that Anthropic runs or has trained models on is offered to nobody."""

    hints: ClassVar[NeutralValues] = {
        **CACHE_HINTS,
        "allowed_callers": (["direct"],),
        "defer_loading": (False,),
        "eager_input_streaming": ANY,  # inputs always come as they are generated
        "input_examples": ([],),
    }

    type: str = "custom"
    """`custom`; a tool of another type, which Anthropic runs or trains, is offered to nobody."""
    name: str | None = Field(default=None, pattern=NAME_PATTERN)
    """The tool's name."""
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    """A JSON Schema of the input, an object; without it the tool takes none."""
    strict: bool = False
    """Whether a schema that cannot be enforced is refused."""

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Return a tool of Anthropic's without its options, since it is named as a whole."""
        if document.get("type") in (None, "custom"):
            return document
        return {name: document[name] for name in ("type", "name") if name in document}

    @property
    def is_own(self) -> bool:
        """Whether the client has defined it."""
        return self.type == "custom"

    @property
    def is_strict(self) -> bool:
        """Whether it is marked so, and the rules of OpenAI's strict schemas hold."""
        if not self.strict:
            return False
        try:
            check_strict(self.input_schema, "")
        except InvalidParameter:
            return False
        return True

    def as_function(self, at: str) -> Function:
        """Return the function that the model is shown; `at` is the tool's path."""
        return Function(
            name=self.name or "",
            name_at=f"{at}.name",
            description=self.description,
            parameters=self.input_schema,
            parameters_at=f"{at}.input_schema",
            is_strict=self.is_strict,
        )


class MessagesToolChoice(WireObject):
    """Whether tools may or must be called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    """Whether tools may (`auto`), must (`any`, `tool`) or must not be called (`none`)."""
    name: str | None = None
    """The name of one of `tools`, for the type `tool`."""
    disable_parallel_tool_use: bool = False
    """Whether one answer may have one call only."""

    def as_choice(self) -> Choice:
        """Return the choice."""
        if self.name is not None:
            return Choice("required", {self.name: "tool_choice.name"}, is_named=True)
        return Choice("required" if self.type in ("any", "tool") else self.type)


class ThinkingConfig(WireObject):
    """Whether the model thinks."""

    hints: ClassVar[NeutralValues] = {"budget_tokens": ()}

    type: str
    """`enabled`, `adaptive` or `disabled`, for chat templates that have a switch."""
    display: Literal["summarized", "omitted"] | None = None
    """`omitted` leaves the text of the thinking out; the signature stands for it."""

    @property
    def is_known(self) -> bool:
        """Whether the type states a level of thinking that templates may have."""
        return self.type in ("adaptive", "disabled", "enabled")


class OutputFormat(WireObject):
    """The schema of the answer's text."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")
    """A JSON Schema. A keyword that cannot be enforced is refused by its path."""


class OutputConfig(WireObject):
    """How the answer is made."""

    hints: ClassVar[NeutralValues] = {"task_budget": ()}

    effort: str | None = None
    """How long to think, for chat templates that read it; `none` where thinking has a switch."""
    format: OutputFormat | None = None
    """Whether the text is free, a JSON object, or JSON that satisfies a schema."""


class MessagesMetadata(WireObject):
    """What the client says about the request."""

    user_id: str | None = None
    """The client's own user, written to the log."""


class CountTokensRequest(WireObject):
    """The body of POST /v1/messages/count_tokens: what makes a prompt."""

    hints: ClassVar[NeutralValues] = _HINTS
    bulk: ClassVar[Mapping[str, Any]] = {"messages": [{"role": "user", "content": []}], "system": []}

    model: str = Field(max_length=MAX_NAME_CHARS)
    messages: Annotated[list[InputMessage], Field(min_length=1, fail_fast=True)]
    system: Annotated[list[TextBlock], Field(fail_fast=True), OrText()] = Field(default_factory=list)
    """The system's message, whole or in blocks. Claude Code's billing line is left out."""
    tools: Annotated[list[MessagesTool], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(default_factory=list)
    tool_choice: MessagesToolChoice | None = None  # None is `auto`
    """Whether tools may or must be called, and which."""
    thinking: ThinkingConfig | None = None
    """Whether the model thinks."""
    output_config: OutputConfig | None = None
    """How long to think, and the schema of the answer's text."""
    metadata: MessagesMetadata | None = None
    """Who uses the client."""

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Return a body whose format is part of its `output_config`, as it is since Anthropic's beta has ended."""
        stated, config = document.get("output_format"), document.get("output_config")
        if stated is None or not isinstance(config, dict | None):
            return document
        moved = {"format": stated} | (config or {})
        return {name: value for name, value in document.items() if name != "output_format"} | {"output_config": moved}

    @override
    def check_consistency(self) -> None:
        """Refuse blocks that are incomplete, results without calls, tools without names and a choice without one."""
        called: set[str | None] = set()
        for index, message in enumerate(self.messages):
            if message.role == "tool":
                param = f"messages[{index}].role"
                text = f"Invalid '{param}': results are blocks of type 'tool_result' in messages of the user."
                raise InvalidParameter(text, param=param)
            for number, block in enumerate(message.content):
                path = f"messages[{index}].content[{number}]"
                block.check(path, message.role)
                if block.type == "tool_use":
                    called.add(block.id)
                elif block.type == "tool_result" and block.tool_use_id not in called:
                    param = f"{path}.tool_use_id"
                    text = f"Invalid '{param}': no earlier block of type 'tool_use' has this id. Send the call too."
                    raise InvalidParameter(text, param=param)
        for index, tool in enumerate(self.tools):
            if tool.is_own and tool.name is None:
                raise MissingParameter(f"tools[{index}].name")
        if self.tool_choice is not None and (self.tool_choice.type == "tool") != (self.tool_choice.name is not None):
            if self.tool_choice.name is None:
                raise MissingParameter("tool_choice.name")
            text = "'tool_choice.name' needs 'tool_choice.type' to be 'tool'."
            raise InvalidParameter(text, param="tool_choice.name")

    @property
    def own_tools(self) -> list[tuple[int, MessagesTool]]:
        """The tools that the model may call, with their places in the request."""
        return [(index, tool) for index, tool in enumerate(self.tools) if tool.is_own]

    def options(self) -> Options:
        """Return how the answer is sampled, when it ends, and what comes with it."""
        return Options(model=self.model)

    def conversation(self, own_thinking: OwnThinking) -> Conversation:
        """Return what the request asks for.

        Args:
            own_thinking: returns the text of a thinking block that this service has written, None for others.
        """
        functions, choice = self._functions(), self._choice()
        check_tools(functions, choice)
        turns, ignored = turns_of([(message.role, message.content) for message in self.messages], own_thinking)
        system = joined([text for block in self.system if (text := _without_billing(block.text))])
        if system:
            turns = [Turn(role="system", parts=(TextPart(system, "system"),), at="system"), *turns]
        ignored += [f"tools[{i}].type" for i, tool in enumerate(self.tools) if not tool.is_own]
        ignored += [f"tools[{i}].strict" for i, tool in self.own_tools if tool.strict and not tool.is_strict]
        last = turns[-1]
        continues = last.role == "assistant" and not last.calls and any(part.text for part in last.texts)
        return Conversation(
            turns=turns,
            at="messages",
            options=self.options(),
            tools=functions,
            choice=choice,
            allows_several_calls=self.tool_choice is None or not self.tool_choice.disable_parallel_tool_use,
            effort=self._effort(ignored),
            begins_answer=not continues,
            continues_last=continues,
            ignored=ignored,
        )

    def _functions(self) -> list[Function]:
        return [tool.as_function(f"tools[{index}]") for index, tool in self.own_tools]

    def _choice(self) -> Choice:
        return ANY_CHOICE if self.tool_choice is None else self.tool_choice.as_choice()

    def _effort(self, ignored: list[str]) -> Effort | None:
        thinking, level = self.thinking, None if self.output_config is None else self.output_config.effort
        if thinking is not None and not thinking.is_known:
            ignored.append("thinking.type")
        if thinking is not None and thinking.type == "disabled":
            ignored += ["output_config.effort"] if level is not None else []
            return Effort(OFF, "thinking")
        if level is not None:
            return Effort(level, "output_config.effort")
        return Effort(None, "thinking") if thinking is not None and thinking.is_known else None


class MessagesRequest(CountTokensRequest):
    """The body of POST /v1/messages."""

    refused: ClassVar[NeutralValues] = GRAMMAR_PROMISES

    max_tokens: MaxTokens = Field()
    """The most tokens of the answer; beyond the context, the rest of it."""
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    """Keep this many of the likeliest tokens; 0 and -1 keep all."""
    stop_sequences: Annotated[
        list[Annotated[str, Field(max_length=MAX_STOP_CHARS)]], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)
    ] = Field(default_factory=list)
    """Strings that end the text; the text excludes them."""
    stream: bool = False

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Return a body whose limit and stops have Anthropic's names."""
        document = super().rewritten(document)
        names = {name: "max_tokens" for name in LIMITS if name != "max_tokens"} | {"stop": "stop_sequences"}
        for name in names.keys() & document.keys():
            value, own = document[name], names[name]
            value = [value] if name == "stop" and isinstance(value, str) else value
            if value is not None and document.get(own) not in (None, value):
                raise InvalidParameter(f"'{name}' contradicts '{own}'; send one.", param=name)
            others = {key: stated for key, stated in document.items() if key != name}
            document = others if value is None else others | {own: value}
        return document

    @property
    def shows_thinking(self) -> bool:
        """Whether the answer has the text of its thinking, besides a signature that stands for it."""
        return self.thinking is None or self.thinking.display != "omitted"

    @override
    def options(self) -> Options:
        answer_format = None
        if self.output_config is not None and (stated := self.output_config.format) is not None:
            at = "output_config.format"
            answer_format = AnswerFormat("json", stated.schema_, f"{at}.schema", at)
        return Options(
            model=self.model,
            stream=self.stream,
            user=None if self.metadata is None else self.metadata.user_id,
            format=answer_format,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=[text for text in self.stop_sequences if text],
        )


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(BILLING_LINE) else text
