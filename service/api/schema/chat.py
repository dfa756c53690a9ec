"""The body of POST /v1/chat/completions: its fields by the rule of `wire`.

Source: https://platform.openai.com/docs/api-reference/chat/create
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, get_args, override

from pydantic import BeforeValidator, Field
from pydantic_core import to_json

from service.api.conversation import (
    ANY_CHOICE,
    AnswerFormat,
    Call,
    Choice,
    Conversation,
    Function,
    ImagePart,
    Options,
    OwnThinking,
    Part,
    TextPart,
    Turn,
    check_results,
    check_tools,
)
from service.api.schema.generation import HINTS, REFUSED, GenerationRequest, MaxTokens
from service.api.schema.structured import ResponseFormat
from service.api.schema.template import TemplateFields
from service.api.schema.tools import MAX_TOOLS, NamedFunction, Tool, ToolChoice, ToolWord, as_tool_choice
from service.api.schema.wire import ANY, NeutralValues, OrText, WireObject
from service.engine.limits import MAX_LOGPROBS
from service.errors import InvalidParameter, MissingParameter

_REFUSED: NeutralValues = {
    **REFUSED,
    "audio": (),
    "chat_template": (),
    "echo": (False,),
    "modalities": (["text"],),
}
_HINTS: NeutralValues = {
    **HINTS,
    "add_special_tokens": (False,),
    "include_reasoning": (True,),
    "metadata": ({},),
    "mm_processor_kwargs": ({},),
    "moderation": (),
    "prompt_cache_key": ANY,  # OpenAI routes requests of one key to one machine; here every request finds every prefix
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory", "in-memory"),
    "separate_reasoning": (True,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "stream_reasoning": (True,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
# Fields of an answer that clients send back with the next request.
_REPLAYED_FIELDS: NeutralValues = {
    "annotations": ([],),
    "audio": (),
    "cache_control": (),
    "images": ([],),
    "parsed": ANY,  # the official clients add it to an answer for its reader; the content counts
    "provider_specific_fields": ({},),
    "reasoning_details": ([],),
    "redacted_thinking": (),  # a part of the content that only another service can read
    "thinking_blocks": ([],),
    "type": ANY,  # lm-eval marks its messages like parts
}
_TEXT_TYPES = ("text", "input_text", "output_text", "refusal")
_IMAGE_TYPE = "image_url"
_THINKING_TYPES = ("thinking", "reasoning", "redacted_thinking")  # of other services' answers
# The roles that every chat may have; a fine-tune may have others.
ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
# The fields of a message that every turn of its kind has, under whichever name they came.
_TURN_FIELDS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"})
type Detail = Literal["auto", "low", "high"]  # of an image
Role = Annotated[str, Field(pattern=r"^[\w .:/-]{1,64}$")]


def _function_call_id(name: Any) -> str:
    """Return the id of a call of OpenAI's older interface, whose results name the function instead."""
    return f"function_call-{name}"


def as_arguments(value: Any) -> str:
    """Return the arguments of an earlier call as text; clients also send back what they have parsed, or nothing."""
    return (value if isinstance(value, str) else to_json(value).decode()) or "{}"


def with_text_of_refusal(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part whose text is a refusal's, which OpenAI has under a name of its own."""
    if part.get("type") == "refusal" and "text" not in part:
        return {"type": "refusal", "text": part.get("refusal")}
    return part


def _with_thinking_apart(message: dict[str, Any], parts: list[Any]) -> dict[str, Any]:
    """Return an assistant's message whose thinking is no part of its content, as some services have it."""
    thoughts = [part for part in parts if isinstance(part, dict) and part.get("type") in _THINKING_TYPES]
    if not thoughts:
        return message
    text = "".join(_text_of_thought(part.get("thinking") or part.get("text")) for part in thoughts)
    others = [part for part in parts if not (isinstance(part, dict) and part.get("type") in _THINKING_TYPES)]
    apart = {"reasoning_content": text} | message | {"content": others}
    has_redacted = any(part["type"] == "redacted_thinking" for part in thoughts)
    return apart | ({"redacted_thinking": True} if has_redacted else {})


def _text_of_thought(value: Any) -> str:
    if isinstance(value, list):
        return "".join(_text_of_thought(part.get("text")) for part in value if isinstance(part, dict))
    return value if isinstance(value, str) else ""


def _as_image(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


def image_of_source(source: Any) -> str | None:
    """Return an image as Anthropic states it as a URL; None if it is a file."""
    if not isinstance(source, dict):
        return None
    if source.get("type") == "url":
        return source["url"] if isinstance(source.get("url"), str) else None
    return as_data_url(source.get("data")) if source.get("type") == "base64" else None


def as_data_url(data: Any) -> str | None:
    """Return base64 as a data URL, which some clients make of it themselves."""
    if not isinstance(data, str):
        return None
    return data if data.lstrip()[:5].lower() == "data:" else f"data:;base64,{data}"


def _with_image_url(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part with an image as other interfaces write it: Responses, Messages, the Model Context Protocol."""
    names = ("type", "image_url", "detail", "source", "data", "mimeType")
    url = part.get("image_url") or image_of_source(part.get("source")) or as_data_url(part.get("data"))
    image = _as_image(url)
    if isinstance(image, dict) and "detail" in part:
        image = {"detail": part["detail"], **image}
    others = {name: value for name, value in part.items() if name not in names}
    return others | {"type": _IMAGE_TYPE} | ({} if image is None else {"image_url": image})


class ImageUrl(WireObject):
    """An image of a message."""

    effective_values: ClassVar[NeutralValues] = {"detail": get_args(Detail.__value__)}
    blank: ClassVar[tuple[str, ...]] = ("detail",)

    url: str
    """The image itself, `data:image/png;base64,…`, or its https address with ALLOW_REMOTE_IMAGES."""
    detail: Detail = "auto"
    """`low` takes fewer tokens and shows less; another value than these has no effect."""


class ContentPart(WireObject):
    """A part of a message: text, or for a vision model an image; audio and files are not supported."""

    hints: ClassVar[NeutralValues] = {"annotations": ([],), "cache_control": (), "logprobs": ([],)}
    blank: ClassVar[tuple[str, ...]] = ("type", "image_url")
    supported_types: ClassVar[tuple[str, ...]] = (*_TEXT_TYPES, _IMAGE_TYPE)

    type: Literal["text", "input_text", "output_text", "refusal", "image_url"] = "text"
    text: str = ""
    """The text."""
    image_url: Annotated[ImageUrl, BeforeValidator(_as_image, json_schema_input_type=str | ImageUrl)] | None = None
    """The image, of a part of that type."""

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        kind = document.get("type")
        if kind in ("input_image", "image"):
            return _with_image_url(document)
        return with_text_of_refusal(document)

    @property
    def missing(self) -> str | None:
        """The field that a part of its type needs and has not."""
        needed = "image_url" if self.type == _IMAGE_TYPE else "text"
        return None if needed in self.model_fields_set else needed

    def as_part(self, at: str) -> Part:
        """Return the part, which has this path."""
        if self.image_url is None:
            return TextPart(self.text, f"{at}.text")
        return ImagePart(self.image_url.url, self.image_url.detail, f"{at}.image_url", f"{at}.type")

    @override
    def check_consistency(self) -> None:
        """Raise MissingParameter for a part without what its type needs."""
        if self.missing is not None:
            raise MissingParameter(self.missing)


class FunctionCall(WireObject):
    """The function of an earlier tool call."""

    hints: ClassVar[NeutralValues] = {"parsed_arguments": ANY}  # of the official clients; the text counts

    name: str
    """The function's name."""
    arguments: Annotated[str, BeforeValidator(as_arguments, json_schema_input_type=Any)] = "{}"
    """The arguments of the call: a JSON object, serialized, or whatever a model has written instead."""


class ToolCall(WireObject):
    """A tool call that the assistant made earlier."""

    hints: ClassVar[NeutralValues] = {"extra_content": ({},), "index": ANY, "provider_specific_fields": ({},)}
    blank: ClassVar[tuple[str, ...]] = ("id", "type")

    id: str | None = None
    """The call's id, which the tool's answer repeats; of a call without one, the results come in its place."""
    type: Literal["function"] = "function"
    function: FunctionCall
    """The function that was called."""

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Return the call of a custom tool as that of a function of its text."""
        custom = document.get("custom")
        if document.get("type") != "custom" or not isinstance(custom, dict):
            return document
        function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
        return {"id": document.get("id"), "type": "function", "function": function}

    def as_call(self) -> Call:
        """Return the call."""
        return Call(self.id, self.function.name, self.function.arguments)


class Prediction(WireObject):
    """Text that the answer will have for the most part, such as a file that it edits."""

    type: Literal["content"] = "content"
    content: Annotated[list[ContentPart], Field(fail_fast=True), OrText()]
    """The text, whole or in parts."""

    @property
    def text(self) -> str:
        """The text of all parts."""
        return "".join(part.text for part in self.content)


class Message(WireObject):
    """One message of a chat."""

    hints: ClassVar[NeutralValues] = _REPLAYED_FIELDS
    blank: ClassVar[tuple[str, ...]] = ("name", "tool_call_id", "reasoning_content", "reasoning")

    role: Role
    content: Annotated[list[ContentPart], Field(fail_fast=True), OrText()] | None = None
    """The text, whole or in parts, and images between them. An assistant's message with tool calls needs none."""
    name: str | None = None
    """The author's name, if the chat template uses one."""
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    """The calls that the assistant made."""
    tool_call_id: str | None = None
    """Which call a tool's message answers."""
    reasoning_content: str | None = None
    """vLLM's: the thinking before an earlier answer, for templates that render it."""
    reasoning: str | None = None
    """The newer name of `reasoning_content`."""

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Return a message whose text is its content, and whose call of a function is one of a tool."""
        role, content = document.get("role"), document.get("content")
        if role == "assistant" and isinstance(content, list):
            document = _with_thinking_apart(document, content)
        if content is not None and role != "function" and not document.keys() & {"refusal", "function_call"}:
            return document
        message = {name: value for name, value in document.items() if name not in ("refusal", "function_call")}
        if content is None and isinstance(refusal := document.get("refusal"), str):
            message["content"] = refusal
        elif content is None and role in ("tool", "function"):
            message["content"] = ""
        if role == "function":
            message |= {"role": "tool", "tool_call_id": _function_call_id(document.get("name"))}
        call = document.get("function_call")
        if isinstance(call, dict) and call.get("name") != "":
            message["tool_calls"] = [{"id": _function_call_id(call.get("name")), "function": call}]
        return message

    @property
    def thinking(self) -> str | None:
        """The thinking before an earlier answer, under either of its names."""
        return self.reasoning or self.reasoning_content if self.role == "assistant" else None

    def as_turn(self, at: str) -> Turn:
        """Return the message, which has this path."""
        parts = tuple(part.as_part(f"{at}.content[{index}]") for index, part in enumerate(self.content or ()))
        return Turn(
            role=self.role,
            parts=None if self.content is None else parts,
            at=at,
            name=self.name,
            thinking=self.thinking,
            calls=tuple(c.as_call() for c in self.tool_calls or ()),
            call_id=self.tool_call_id,
            sent=self._effectively_sent(),
        )

    def _effectively_sent(self) -> dict[str, Any] | None:
        """Return the message as the client sent it, without what is absent because it is empty."""
        if (sent := self.sent) is None:
            return None
        return {
            name: value
            for name, value in self.rewritten(sent).items()
            if (name in sent or name in _TURN_FIELDS) and not (value == "" and name in self.blank)
        }

    @property
    def unread_thinking(self) -> list[str]:
        """The fields whose thinking is not read: of another role than the assistant's, or beside another."""
        names = [name for name in ("reasoning", "reasoning_content") if getattr(self, name)]
        if self.role != "assistant":
            return names
        return names[1:] if self.reasoning != self.reasoning_content else []


class ChatCompletionRequest(GenerationRequest, TemplateFields):
    """The body of POST /v1/chat/completions."""

    hints: ClassVar[NeutralValues] = _HINTS
    refused: ClassVar[NeutralValues] = _REFUSED
    own_limits: ClassVar[tuple[str, ...]] = ("max_tokens", "max_completion_tokens")
    bulk: ClassVar[Mapping[str, Any]] = {"messages": [{"role": "user"}]}
    keeps_sent: ClassVar[tuple[str, ...]] = ("messages", "tools")
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    functions: list[dict[str, Any]] = Field(default_factory=list)
    """The older name of `tools`; the answer states its call as `function_call`."""
    function_call: Literal["none", "auto"] | NamedFunction | None = None
    """The older name of `tool_choice`."""
    max_completion_tokens: MaxTokens = None
    """The newer name of `max_tokens`; two limits that differ are refused."""
    prediction: Prediction | None = None
    """Text that the answer is expected to have, by which it may come sooner (`SPECULATION`). It changes no answer."""
    response_format: ResponseFormat | None = None
    """Whether the answer is text, a JSON object, or JSON that satisfies a schema."""
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(default_factory=list)
    tool_choice: (
        Annotated[
            ToolChoice,
            BeforeValidator(as_tool_choice, json_schema_input_type=ToolWord | ToolChoice),
        ]
        | None
    ) = None  # None is `auto`
    """Whether tools may (`auto`) or must be called, and which (`function`, `allowed_tools`)."""
    parallel_tool_calls: bool = True
    """Whether one answer may have several calls."""
    logprobs: bool = False
    """Whether to return the log-probability of each token."""
    top_logprobs: int = Field(default=0, ge=0, le=MAX_LOGPROBS)
    safety_identifier: str | None = None
    """The newer name of `user`."""
    truncation: Literal["auto", "disabled"] = "disabled"
    """`auto` drops the oldest turns of a chat that is longer than the context; `disabled` refuses it."""

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Return a chat whose functions are tools, and whose promises have the names that they have here."""
        document = super().rewritten(document)
        functions, choice = document.get("functions"), document.get("function_call")
        if not isinstance(functions, list) or not functions:
            return document
        chat = {"tools": [{"type": "function", "function": function} for function in functions]} | document
        if isinstance(choice, dict):
            chat.setdefault("tool_choice", {"type": "function", "function": choice})
        elif choice in ("none", "auto"):
            chat.setdefault("tool_choice", choice)
        return chat | {"parallel_tool_calls": False}

    @property
    def answers_with_function_call(self) -> bool:
        """Whether an answer states its call as OpenAI's older interface does."""
        return bool(self.functions)

    @property
    @override
    def format(self) -> AnswerFormat | None:
        stated = None if self.response_format is None else self.response_format.as_format()
        return super().format or stated

    @override
    def options(self) -> Options:
        newer, has_newer = self.max_completion_tokens, self.max_completion_tokens is not None
        return Options(
            **self.shared_options(),
            model=self.model,
            stream=self.stream,
            user=self.user if self.safety_identifier is None else self.safety_identifier,
            format=self.format,
            max_tokens=newer if has_newer else self.max_tokens,
            max_tokens_at="max_completion_tokens" if has_newer else "max_tokens",
            num_logprobs=self.top_logprobs if self.logprobs else None,
            num_prompt_logprobs=self.prompt_logprobs,
            prediction=None if self.prediction is None else self.prediction.text,
        )

    def conversation(self, own_thinking: OwnThinking) -> Conversation:
        """Return what the chat asks for."""
        return Conversation(
            turns=self.turns,
            at="messages",
            options=self.options(),
            tools=self.stated_tools,
            choice=self.choice,
            allows_several_calls=self.parallel_tool_calls,
            drops_oldest=self.truncation == "auto",
            **self.rendering(),
        )

    @cached_property
    def turns(self) -> Sequence[Turn]:
        """The messages."""
        return turns_of(self.messages)

    @cached_property
    def stated_tools(self) -> Sequence[Function]:
        """The tools."""
        return [tool.as_tool(f"tools[{index}]") for index, tool in enumerate(self.tools)]

    @cached_property
    def choice(self) -> Choice:
        """Whether tools may or must be called, and which."""
        return ANY_CHOICE if self.tool_choice is None else self.tool_choice.as_choice()

    @override
    def check_consistency(self) -> None:
        """Refuse two limits or formats that differ, and `top_logprobs` without `logprobs`, as OpenAI does."""
        super().check_consistency()
        check_tools(self.stated_tools, self.choice)
        self.check_rendering()
        check_results(self.turns)
        unread: dict[str, str] = {}
        for index, message in enumerate(self.messages):
            _check_parts(message, f"messages[{index}]")
            for name in message.unread_thinking:
                unread.setdefault(name, f"messages[{index}].{name}")
        self.ignore(unread.values())
        for number, part in enumerate(() if self.prediction is None else self.prediction.content):
            if part.type == _IMAGE_TYPE:
                param = f"prediction.content[{number}]"
                raise InvalidParameter(f"Invalid '{param}': a prediction has text alone.", param=param)
        if self.response_format is not None:
            self.response_format.check()
            if self.response_format.type != "text" and self.structured_outputs is not None:
                message = "'structured_outputs' contradicts 'response_format'; send one."
                raise InvalidParameter(message, param="structured_outputs")
        if self.top_logprobs and not self.logprobs:
            raise InvalidParameter("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
        if self.max_tokens is not None and self.max_completion_tokens not in (None, self.max_tokens):
            raise InvalidParameter("'max_tokens' contradicts 'max_completion_tokens'; send one.", param="max_tokens")


def turns_of(messages: Sequence[Message]) -> tuple[Turn, ...]:
    """Return the messages of a chat."""
    return tuple(message.as_turn(f"messages[{index}]") for index, message in enumerate(messages))


def _check_parts(message: Message, path: str) -> None:
    for number, part in enumerate(message.content or ()):
        if (missing := part.missing) is not None:
            raise MissingParameter(f"{path}.content[{number}].{missing}")
