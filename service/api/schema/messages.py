"""The bodies of POST /v1/messages and /v1/messages/count_tokens, and the chat that they mean.

Source: https://docs.anthropic.com/en/api/messages, https://docs.anthropic.com/en/api/messages-count-tokens
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, override

from pydantic import BeforeValidator, Field

from service.api.schema.chat import MeantChat, OwnThinking, Role
from service.api.schema.generation import (
    INT32_MAX,
    MAX_NAME_CHARS,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    MaxTokens,
    TopP,
)
from service.api.schema.message_blocks import CACHE_HINTS, Block, TextBlock, joined, messages_of
from service.api.schema.other_names import GRAMMAR_PROMISES, LIMITS
from service.api.schema.tools import MAX_TOOLS
from service.api.schema.wire import ANY, NeutralValues, WireObject
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


def _as_blocks(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


class InputMessage(WireObject):
    """One turn of the conversation."""

    hints: ClassVar[NeutralValues] = _REPLAYED_FIELDS
    nested: ClassVar[dict[str, type[WireObject]]] = {"content": Block}

    role: Role
    """Who speaks: `user`, `assistant`, `system`, which may do so in the middle too, or a role that the model's chat
    template writes."""
    content: Annotated[
        list[Block], Field(fail_fast=True), BeforeValidator(_as_blocks, json_schema_input_type=str | list[Block])
    ]
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
    name: str | None = None
    """The tool's name."""
    description: str | None = None
    """What it is for."""
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

    def as_function(self) -> dict[str, Any]:
        """Return the tool as a chat states it."""
        function = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        stated = {name: value for name, value in function.items() if value is not None}
        return {"type": "function", "function": stated | {"strict": self.is_strict}}


class MessagesToolChoice(WireObject):
    """Whether tools may or must be called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    """Whether tools may (`auto`), must (`any`, `tool`) or must not be called (`none`)."""
    name: str | None = None
    """The name of one of `tools`, for the type `tool`."""
    disable_parallel_tool_use: bool = False
    """Whether one answer may have one call only."""

    def as_in_chats(self) -> str | dict[str, Any]:
        """Return the choice as a chat states it."""
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name}}
        return "required" if self.type == "any" else self.type


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
    """The kind of the object."""
    schema_: dict[str, Any] = Field(alias="schema")
    """A JSON Schema. A keyword that cannot be enforced is refused by its path."""


class OutputConfig(WireObject):
    """How the answer is made."""

    hints: ClassVar[NeutralValues] = {"task_budget": ()}
    nested: ClassVar[dict[str, type[WireObject]]] = {"format": OutputFormat}

    effort: str | None = None
    """How long to think, for chat templates that read it; `none` where thinking has a switch."""
    format: OutputFormat | None = None
    """Whether the text is free, a JSON object, or JSON that satisfies a schema."""


class MessagesMetadata(WireObject):
    """What the client says about the request."""

    user_id: str | None = None
    """The client's own user, written to the log."""


System = Annotated[
    list[TextBlock], Field(fail_fast=True), BeforeValidator(_as_blocks, json_schema_input_type=str | list[TextBlock])
]


class CountTokensRequest(WireObject):
    """The body of POST /v1/messages/count_tokens: what makes a prompt."""

    hints: ClassVar[NeutralValues] = _HINTS
    bulk: ClassVar[Mapping[str, Any]] = {"messages": [{"role": "user", "content": []}], "system": []}
    nested: ClassVar[dict[str, type[WireObject]]] = {
        "messages": InputMessage,
        "metadata": MessagesMetadata,
        "output_config": OutputConfig,
        "system": TextBlock,
        "thinking": ThinkingConfig,
        "tool_choice": MessagesToolChoice,
        "tools": MessagesTool,
    }

    model: str = Field(max_length=MAX_NAME_CHARS)
    """The served model's name; GET /v1/models lists it."""
    messages: Annotated[list[InputMessage], Field(min_length=1, fail_fast=True)]
    """The chat so far, oldest message first."""
    system: System = Field(default_factory=list)
    """The system's message, whole or in blocks. Claude Code's billing line is left out."""
    tools: Annotated[list[MessagesTool], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(default_factory=list)
    """The functions that the model may call. Calls are held to their schemas; what a grammar cannot hold is refused if
    the call is required or strict, and is otherwise left out and named."""
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

    def as_chat(self, own_thinking: OwnThinking) -> MeantChat:
        """Return the chat that has the same answer.

        Args:
            own_thinking: returns the text of a thinking block that this service has written, None for others.
        """
        messages, ignored = messages_of([(message.role, message.content) for message in self.messages], own_thinking)
        system = joined([text for block in self.system if (text := _without_billing(block.text))])
        ignored += [f"tools[{i}].type" for i, tool in enumerate(self.tools) if not tool.is_own]
        ignored += [f"tools[{i}].strict" for i, tool in self.own_tools if tool.strict and not tool.is_strict]
        chat: dict[str, Any] = {
            "model": self.model,
            "messages": [*([{"role": "system", "content": system}] if system else []), *messages],
            "tools": [tool.as_function() for _, tool in self.own_tools],
            "response_format": self._response_format(),
            "user": None if self.metadata is None else self.metadata.user_id,
        }
        if (choice := self.tool_choice) is not None:
            chat["tool_choice"] = choice.as_in_chats()
            chat["parallel_tool_calls"] = not choice.disable_parallel_tool_use
        last = messages[-1]
        if last["role"] == "assistant" and last["content"] and "tool_calls" not in last:
            chat |= {"continue_final_message": True, "add_generation_prompt": False}
        chat |= self._level_of_thinking(ignored)
        return MeantChat({name: value for name, value in chat.items() if value is not None}, ignored)

    def _level_of_thinking(self, ignored: list[str]) -> dict[str, Any]:
        thinking, effort = self.thinking, None if self.output_config is None else self.output_config.effort
        if thinking is not None and not thinking.is_known:
            ignored.append("thinking.type")
        if thinking is not None and thinking.type == "disabled":
            ignored += ["output_config.effort"] if effort is not None else []
            return {"thinking": {"type": "disabled"}}
        stated = {"thinking": {"type": thinking.type}} if thinking is not None and thinking.is_known else {}
        return {"reasoning_effort": effort, **stated}

    def _response_format(self) -> dict[str, Any] | None:
        if self.output_config is None or self.output_config.format is None:
            return None
        return {"type": "json_schema", "json_schema": {"schema": self.output_config.format.schema_}}


class MessagesRequest(CountTokensRequest):
    """The body of POST /v1/messages."""

    refused: ClassVar[NeutralValues] = GRAMMAR_PROMISES

    max_tokens: MaxTokens = Field()
    """The most tokens of the answer; beyond the context, the rest of it."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Divides the logits; 0 always takes the likeliest token."""
    top_p: TopP | None = None
    """Keep the likeliest tokens whose probabilities add up to this; 0 keeps only the likeliest."""
    top_k: int | None = Field(default=None, ge=-1, le=INT32_MAX)
    """Keep this many of the likeliest tokens; 0 and -1 keep all."""
    stop_sequences: Annotated[
        list[Annotated[str, Field(max_length=MAX_STOP_CHARS)]], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)
    ] = Field(default_factory=list)
    """Strings that end the text; the text excludes them."""
    stream: bool = False
    """Whether to answer with server-sent events."""

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
    def as_chat(self, own_thinking: OwnThinking) -> MeantChat:
        chat = super().as_chat(own_thinking)
        sampling = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": self.stop_sequences,
            "stream": self.stream,
        }
        stated = {name: value for name, value in sampling.items() if value is not None}
        return chat._replace(document=chat.document | stated)


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(BILLING_LINE) else text
