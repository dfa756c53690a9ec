"""The items of a response's input: messages, calls that the assistant made, their results, and its thinking.

Source: https://platform.openai.com/docs/api-reference/responses/create#responses_create-input
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, get_args, override

from pydantic import BeforeValidator, Field

from service.api.conversation import Call, ImagePart, OwnThinking, Part, TextPart, Turn
from service.api.schema.chat import Detail, Role, as_arguments, with_text_of_refusal
from service.api.schema.response_tools import INPUT, LOCAL_SHELL, qualified
from service.api.schema.wire import ANY, NeutralValues, OrText, WireObject
from service.errors import InvalidParameter, MissingParameter, UnsupportedParameter

# What each kind of item consists of.
_FIELDS = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": ("content", "encrypted_content"),
    "item_reference": (),
    "compaction": ("encrypted_content",),
}
_NAMES = sorted({name for names in _FIELDS.values() for name in names})
_TEXT_TYPES = ("input_text", "output_text", "reasoning_text", "refusal", "summary_text", "text")
_IMAGE_TYPE = "input_image"


def as_items(value: Any) -> Any:
    """Return an input that is a text as the list of its one message."""
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class InputPart(WireObject):
    """A part: text, or for a vision model an image; audio and files are not supported."""

    hints: ClassVar[NeutralValues] = {  # of an earlier answer
        "annotations": ([],),
        "cache_control": (),
        "logprobs": ANY,
        "parsed": ANY,  # the official clients add it for the answer's reader; the text counts
        "prompt_cache_breakpoint": ANY,  # every prefix is kept
    }
    refused: ClassVar[NeutralValues] = {"file_id": ()}
    remedies: ClassVar[Mapping[str, str]] = {"file_id": "send the image itself as 'image_url'."}
    effective_values: ClassVar[NeutralValues] = {"detail": get_args(Detail.__value__)}
    blank: ClassVar[tuple[str, ...]] = ("image_url", "detail")
    supported_types: ClassVar[tuple[str, ...]] = (*_TEXT_TYPES, _IMAGE_TYPE)

    type: Literal["input_text", "output_text", "reasoning_text", "refusal", "summary_text", "text", "input_image"]
    text: str = ""
    """The text."""
    image_url: str | None = None
    """The image, of a part of that type: `data:image/png;base64,…`, or its https address with ALLOW_REMOTE_IMAGES."""
    detail: Detail = "auto"
    """`low` takes fewer tokens and shows less; another value than these has no effect."""

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Return a part whose image is stated as Responses do, and not as a chat does."""
        image = document.get("image_url")
        if document.get("type") == "image_url":
            document = document | {"type": _IMAGE_TYPE}
        if isinstance(image, dict) and isinstance(image.get("url"), str):
            document = {"detail": image.get("detail")} | document | {"image_url": image.get("url")}
        return with_text_of_refusal(document)

    def as_part(self, at: str, *, has_fields: bool) -> Part:
        """Return the part.

        Args:
            at: its path.
            has_fields: whether that is a path in the request, so that the part's fields have one too.
        """
        text_at, image_at, type_at = (f"{at}.{name}" if has_fields else at for name in ("text", "image_url", "type"))
        if self.image_url is None:
            return TextPart(self.text, text_at)
        return ImagePart(self.image_url, self.detail, image_at, type_at)

    @override
    def check_consistency(self) -> None:
        """Raise MissingParameter for a part without what its type needs."""
        self.check("", can_show=True)

    def check(self, path: str, *, can_show: bool) -> None:
        """Check that the part has what its type needs.

        Args:
            path: of the part, with a dot at its end.
            can_show: whether it may be an image.

        Raises:
            MissingParameter: it has not.
            UnsupportedParameter: it is an image that has no place there.
        """
        needed = "image_url" if self.type == _IMAGE_TYPE else "text"
        if needed not in self.model_fields_set:
            raise MissingParameter(f"{path}{needed}")
        if self.image_url is not None and not can_show:
            raise UnsupportedParameter(f"{path}type", "only messages and results of calls have images.")


Parts = Annotated[list[InputPart], Field(fail_fast=True), OrText("input_text")]


class InputItem(WireObject):
    """One item of the input; `id`, `status` and `phase` are those of an earlier answer, and have no effect.

    Calls of custom tools and of the local shell are read as those of the functions that stand for them. Items of tools
    that OpenAI runs are left out and reported.
    """

    hints: ClassVar[NeutralValues] = {
        "caller": ({"type": "direct"},),
        "parsed_arguments": ANY,  # of the official clients; the text counts
        "phase": ANY,
        "summary": ([],),
    }
    blank: ClassVar[tuple[str, ...]] = ("type",)
    supported_types: ClassVar[tuple[str, ...]] = tuple(_FIELDS)
    leaves_out_other_types: ClassVar[bool] = True

    type: str = "message"
    id: str | None = None
    """Of an item of an earlier answer; without effect."""
    status: str | None = None
    """Of an item of an earlier answer; without effect."""
    role: Role | None = None
    """Who speaks: `system`, of which `developer` is a newer name, `user`, `assistant`, or a role that the model's chat
    template writes."""
    content: Parts | None = None
    """The text, whole or in parts. An assistant's message with tool calls needs none."""
    call_id: str | None = None
    """The call's id, which the item with its output repeats."""
    name: str | None = None
    """The name of the function that was called."""
    arguments: Annotated[str, BeforeValidator(as_arguments, json_schema_input_type=Any)] | None = None
    """The arguments of the call: a JSON object, serialized, or whatever a model has written instead."""
    output: Parts | None = None
    """What the call returned."""
    encrypted_content: str | None = None
    """The thinking of an earlier answer, as this service returned it."""

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Return an item of one of the kinds that a chat has."""
        kind = document.get("type")
        own = (*_FIELDS.get(kind or "message", _NAMES), "type", "id", "status") if isinstance(kind, str | None) else ()
        if own and "" in document.values():
            document = {name: value for name, value in document.items() if value != "" or name in own}
        rewrite = _REWRITES.get(kind) if isinstance(kind, str) else None
        if rewrite is not None:
            return rewrite(document)
        if kind is None and document.keys() == {"id"} and document["id"] is not None:
            return document | {"type": "item_reference"}
        if document.get("role") == "assistant" and document.get("content") is None:
            return document | {"content": []}
        return document

    def check(self, path: str) -> None:
        """Check that the item has what its kind consists of, and nothing else.

        Raises:
            MissingParameter, InvalidParameter: a field is missing, or belongs to another kind.
            UnsupportedParameter: it was made by another service, and only that can read it.
        """
        own = _FIELDS.get(self.type, ())
        for name in _NAMES:
            is_stated = getattr(self, name) is not None
            if name in own and not is_stated and self.type != "reasoning":
                raise MissingParameter(f"{path}.{name}")
            if name not in own and is_stated:
                param = f"{path}.{name}"
                raise InvalidParameter(f"Invalid '{param}': an item of type '{self.type}' has none.", param=param)
        for name in ("content", "output"):
            for number, part in enumerate(getattr(self, name) or ()):
                part.check(f"{path}.{name}[{number}].", can_show=self.type in ("message", "function_call_output"))
        if self.role == "tool":
            param = f"{path}.role"
            message = f"Invalid '{param}': results are items of type 'function_call_output'."
            raise InvalidParameter(message, param=param)
        if self.type == "item_reference":
            param, stated = f"{path}.id", (self.id or "")[:64]
            message = f"Invalid '{param}': no item with the id '{stated}' is kept here. Send the item itself."
            raise InvalidParameter(message, param=param)
        if self.type == "compaction":
            raise UnsupportedParameter(path, "only the service that made it can read it. Send the items themselves.")


def _as_call(document: dict[str, Any]) -> dict[str, Any]:
    """Return a call whose name has that of its namespace, with arguments, be they empty."""
    call = {name: value for name, value in document.items() if name != "namespace"}
    call = {"call_id": document.get("id")} | call | ({} if call.get("arguments") else {"arguments": "{}"})
    name, namespace = document.get("name"), document.get("namespace")
    if isinstance(name, str) and isinstance(namespace, str):
        call["name"] = qualified(name, namespace)
    return call


def _as_custom_call(document: dict[str, Any]) -> dict[str, Any]:
    call = _as_call({name: value for name, value in document.items() if name != "input"})
    return call | {"type": "function_call", "arguments": {INPUT: document.get("input") or ""}}


def _as_shell_call(document: dict[str, Any]) -> dict[str, Any]:
    call = {name: value for name, value in document.items() if name != "action"}
    action = document.get("action")
    if isinstance(action, dict):
        action = {name: value for name, value in action.items() if name != "type" and value is not None}
    return {"call_id": document.get("id")} | call | {
        "type": "function_call", "name": LOCAL_SHELL, "arguments": "{}" if action is None else action,
    }  # fmt: skip


def _as_result(document: dict[str, Any]) -> dict[str, Any]:
    """Return a result that has an output, be it empty."""
    output = document.get("output")
    return document | {"type": "function_call_output", "output": "" if output is None else output}


def _as_shell_result(document: dict[str, Any]) -> dict[str, Any]:
    """Return a result whose id is that of its call, as OpenAI has it."""
    return _as_result(document if document.get("call_id") else document | {"call_id": document.get("id")})


def _as_thinking(document: dict[str, Any]) -> dict[str, Any]:
    """Return thinking as its text if the item has it, as its summary, or as what it was sealed into."""
    content, summary = document.get("content"), document.get("summary")
    if not content and summary:
        content = summary
        document = {name: value for name, value in document.items() if name != "summary"}
    if not content:
        return {name: value for name, value in document.items() if name != "content"}
    return {name: value for name, value in document.items() if name != "encrypted_content"} | {"content": content}


_REWRITES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "function_call": _as_call,
    "custom_tool_call": _as_custom_call,
    "local_shell_call": _as_shell_call,
    "function_call_output": _as_result,
    "custom_tool_call_output": _as_result,
    "local_shell_call_output": _as_shell_result,
    "reasoning": _as_thinking,
}


def check_results(items: Iterable[InputItem], *, num_earlier: int = 0) -> None:
    """Check that each result answers a call before it.

    Args:
        items: the whole input, earlier items first.
        num_earlier: how many of them belong to an earlier response, and so have no index in the request.

    Raises:
        InvalidParameter: no earlier item is the call of a result.
    """
    called: set[str | None] = set()
    for index, item in enumerate(items):
        if item.type == "function_call":
            called.update((item.call_id, item.id))
        elif item.type == "function_call_output" and item.call_id not in called:
            param = f"input[{index - num_earlier}].call_id"
            message = f"Invalid '{param}': no earlier item of type 'function_call' has this id. Send the call too."
            raise InvalidParameter(message, param=param)


@dataclass
class _Draft:
    """A turn that may still grow."""

    role: str
    at: str
    parts: tuple[Part, ...] | None = None
    thinking: str | None = None
    calls: list[Call] = field(default_factory=list[Call])
    call_id: str | None = None

    def turn(self) -> Turn:
        """Return the turn as it is."""
        return Turn(
            role=self.role,
            parts=self.parts,
            at=self.at,
            thinking=self.thinking,
            calls=tuple(self.calls),
            call_id=self.call_id,
        )


def turns_of(
    items: Iterable[InputItem], own_thinking: OwnThinking, *, num_earlier: int = 0
) -> tuple[list[Turn], list[str]]:
    """Return the turns of a conversation, and the fields whose thinking another has sealed.

    Thinking and calls belong to the assistant's turn between them.

    Args:
        items: the whole input, earlier items first.
        own_thinking: as in `ResponsesRequest.conversation`.
        num_earlier: how many of them belong to an earlier response, and so have no index in the request.
    """
    unreadable: list[str] = []
    drafts: list[_Draft] = []
    thoughts: list[str] = []  # of the assistant's next turn
    call_ids: dict[str | None, str | None] = {}  # by those of their items, too

    def append(draft: _Draft) -> None:
        thinking = "".join(thoughts)
        thoughts.clear()
        if thinking and draft.role == "assistant":
            draft.thinking = thinking
        elif thinking:  # the answer was cut
            drafts.append(_Draft("assistant", draft.at, (), thinking))
        drafts.append(draft)

    for index, item in enumerate(items):
        at = f"input[{index - num_earlier}]" if index >= num_earlier else "previous_response_id"
        if item.type == "reasoning":
            sealed = item.encrypted_content if not item.content else None
            thought = own_thinking("", sealed) if sealed else "".join(part.text for part in item.content or ())
            if thought is None:
                unreadable.append(f"input[{max(0, index - num_earlier)}].encrypted_content")
            thoughts.append(thought or "")
        elif item.type == "function_call":
            if not drafts or drafts[-1].role != "assistant" or any(thoughts):
                append(_Draft("assistant", at))
            drafts[-1].calls.append(Call(item.call_id, item.name or "", item.arguments or "{}"))
            call_ids[item.id] = item.call_id
        elif item.type == "function_call_output":
            call_id = call_ids.get(item.call_id, item.call_id)
            append(_Draft("tool", at, _parts(item.output, at, "output"), call_id=call_id))
        elif item.type == "message":
            append(_Draft(item.role or "", at, _parts(item.content, at, "content")))
    if any(thoughts):
        append(_Draft("assistant", drafts[-1].at if drafts else "input", ()))
    return [draft.turn() for draft in drafts], unreadable


def _parts(parts: Iterable[InputPart] | None, at: str, name: str) -> tuple[Part, ...]:
    """Return what an item says and shows; `at` is its path."""
    has_index = at.endswith("]")
    paths = ((part, f"{at}.{name}[{number}]" if has_index else at) for number, part in enumerate(parts or ()))
    return tuple(part.as_part(path, has_fields=has_index) for part, path in paths)
