"""The content blocks of Anthropic's messages, and the turns that they make.

Source: https://docs.anthropic.com/en/api/messages#body-messages
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, override

from pydantic import Field

from service.api.conversation import Call, ImagePart, OwnThinking, Part, TextPart, Turn
from service.api.schema.chat import as_arguments, image_of_source
from service.api.schema.wire import ANY, MAX_ECHOED_CHARS, NeutralValues, OrText, WireObject
from service.errors import InvalidParameter, MissingParameter, UnsupportedParameter

CACHE_HINTS: NeutralValues = {"cache_control": ()}  # prefixes are cached without it
_BLOCK_HINTS: NeutralValues = {
    **CACHE_HINTS,
    "caller": ({"type": "direct"},),
    "citations": ([], {"enabled": False}),
    "context": (),
    "parsed_output": ANY,  # the official clients add it to an answer for its reader; the text counts
    "toolset_name": (),
}
# Calls that Anthropic runs itself, their results, and what only Anthropic reads: a conversation may have begun there.
_HOSTED = re.compile(
    r"(server|mcp)_tool_use|\w+_tool_result|redacted_thinking|reasoning|container_upload|compaction|fallback"
)
# What each kind of block consists of.
_FIELDS = {
    "text": ("text",),
    "image": ("source",),
    "document": ("source",),
    "search_result": ("content",),
    "tool_reference": ("tool_name",),
    "tool_use": ("id", "name"),
    "tool_result": ("tool_use_id",),
    "thinking": ("thinking",),
}
_SUPPORTED = ("text", "image", "document", "search_result", "tool_use", "tool_result", "thinking")


class TextBlock(WireObject):
    """A text."""

    hints: ClassVar[NeutralValues] = _BLOCK_HINTS
    supported_types: ClassVar[tuple[str, ...]] = ("text",)

    type: Literal["text"]
    text: str
    """The text."""


class _Readable(WireObject):
    """The fields of blocks that may be read as text."""

    hints: ClassVar[NeutralValues] = _BLOCK_HINTS

    type: str
    text: str | None = None
    """The text."""
    title: str | None = None
    """Comes before the text."""
    source: dict[str, Any] | str | None = None
    """An image, a document's text, or a search result's address."""
    tool_name: str | None = None
    """The tool that a search has found."""

    def check_fields(self, path: str) -> None:
        """Check that the block has what its kind consists of; raises MissingParameter."""
        for name in _FIELDS.get(self.type, ()):
            if getattr(self, name) is None:
                raise MissingParameter(f"{path}.{name}")

    def as_text(self) -> str | None:
        """Return what the block says; None if that is no text."""
        if self.type == "document":
            text = _text_of_source(self.source)
            return text if text is None or not self.title else f"{self.title}\n{text}"
        return self.tool_name if self.type == "tool_reference" else self.text

    def found_text(self, found: Iterable[str]) -> str:
        """Return a search result as text."""
        source = self.source if isinstance(self.source, str) else None
        return "\n".join(part for part in (self.title, source, *found) if part)


class ResultBlock(_Readable):
    """A block of a tool's result."""

    content: Annotated[list[TextBlock], Field(fail_fast=True)] | None = None
    """What a search has found."""

    @override
    def as_text(self) -> str | None:
        if self.type == "search_result":
            return self.found_text(part.text for part in self.content or ())
        return super().as_text()


class Block(_Readable):
    """A block of a message."""

    source: dict[str, Any] | str | None = None
    """An image (its `data`, of type `base64`, or with ALLOW_REMOTE_IMAGES its `url`), a document's text, or a search
    result's address."""
    content: Annotated[list[ResultBlock], Field(fail_fast=True), OrText()] | None = None
    """What the call returned, or a search has found: a text, or its blocks."""
    id: str | None = None
    """The call's id, which the tool's answer repeats."""
    name: str | None = None
    """The name of the tool that was called."""
    input: Any = Field(default_factory=dict)
    """What the tool was called with: an object, or whatever a model has written instead."""
    tool_use_id: str | None = None
    """Which call the result answers."""
    is_error: bool = False
    """Whether the call has failed, which the prompt says too."""
    thinking: str | None = None
    """The thinking of an earlier answer."""
    signature: str = ""
    """Of an earlier answer's thinking, which is read only with it."""

    @classmethod
    @override
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Return a block that only Anthropic reads without its content, since it is named as a whole."""
        kind = document.get("type")
        return {"type": kind} if isinstance(kind, str) and _is_hosted(kind) else document

    @property
    def is_hosted(self) -> bool:
        """Whether only Anthropic reads it."""
        return _is_hosted(self.type)

    @override
    def as_text(self) -> str | None:
        if self.type == "search_result":
            return self.found_text(part.as_text() or "" for part in self.content or ())
        return super().as_text()

    def check(self, path: str, role: str) -> None:
        """Check that the block is complete, and of a kind that its message may have.

        Raises:
            MissingParameter, InvalidParameter: a field is missing, or the role has no such blocks.
            UnsupportedParameter: it is no text.
        """
        if self.is_hosted:
            return
        if self.type not in _SUPPORTED:
            supported = ", ".join(f"'{name}'" for name in _SUPPORTED)
            message = f"it is '{self.type[:MAX_ECHOED_CHARS]}'. Supported: {supported}."
            raise UnsupportedParameter(f"{path}.type", message)
        self.check_fields(path)
        of_roles = (("tool_use", "assistant"), ("tool_result", "user"), ("thinking", "assistant"), ("image", "user"))
        for kind, owner in of_roles:
            if self.type == kind and role != owner:
                text = f"Invalid '{path}.type': only messages of the role '{owner}' have blocks of type '{kind}'."
                raise InvalidParameter(text, param=f"{path}.type")
        if self.type == "image" and image_of_source(self.source) is None:
            reason = "send the image itself, with a source of type 'base64', a 'media_type' and its 'data'."
            raise UnsupportedParameter(f"{path}.source", reason)
        if self.type == "document" and self.as_text() is None:
            raise UnsupportedParameter(f"{path}.source.type", "only text is read. Send the document's text.")
        for number, part in enumerate(self.content or ()):
            part.check_fields(f"{path}.content[{number}]")


def _is_hosted(kind: str) -> bool:
    return _HOSTED.fullmatch(kind) is not None


def _text_of_source(source: Any) -> str | None:
    """Return the text of a document's source; None if it is a file, an address or bytes."""
    if not isinstance(source, dict) or source.get("type") not in ("text", "content"):
        return None
    found = source.get("data") if source["type"] == "text" else source.get("content")
    if isinstance(found, list):
        found = joined([part["text"] for part in found if isinstance(part, dict) and isinstance(part.get("text"), str)])
    return found if isinstance(found, str) else None


def joined(texts: Sequence[str]) -> str:
    """Return texts as one, each on a line of its own unless the client has put white space between them."""
    parts: list[str] = []
    for text in filter(None, texts):
        if parts and not parts[-1][-1].isspace() and not text[0].isspace():
            parts.append("\n")
        parts.append(text)
    return "".join(parts)


@dataclass
class _Draft:
    """A turn that may still grow."""

    role: str
    at: str
    parts: list[Part]
    calls: list[Call] = field(default_factory=list[Call])
    thoughts: list[str] = field(default_factory=list[str])
    call_id: str | None = None

    def add(self, block: Block, path: str, own_thinking: OwnThinking) -> str | None:
        """Add a block that is no result; return the field that is left out if it cannot be read."""
        if block.type == "image":
            self.parts.append(_image_part(block, path))
        elif block.type == "tool_use":
            self.calls.append(Call(block.id, block.name or "", as_arguments(block.input)))
        elif block.type == "thinking":
            thinking = own_thinking(block.thinking or "", block.signature)
            if thinking is None:
                return f"{path}.thinking"
            self.thoughts.append(thinking)
        elif block.is_hosted:
            return f"{path}.type"
        else:
            self.parts.append(TextPart(block.as_text() or "", f"{path}.text"))
        return None

    def append(self, other: "_Draft") -> None:
        """Add a turn of the same role."""
        if all(isinstance(part, TextPart) for part in (*self.parts, *other.parts)):
            self.parts = _joined_parts([*self.parts, *other.parts])
        else:
            self.parts = [*self.parts, TextPart("\n", other.at), *other.parts]
        self.calls += other.calls
        self.thoughts += other.thoughts

    def turn(self) -> Turn:
        """Return the turn as it is."""
        return Turn(
            role=self.role,
            parts=tuple(self.parts or [TextPart("", self.at)]),
            at=self.at,
            thinking=joined(self.thoughts) or None,
            calls=tuple(self.calls),
            call_id=self.call_id,
        )


def turns_of(
    messages: Iterable[tuple[str, Sequence[Block]]], own_thinking: OwnThinking
) -> tuple[list[Turn], list[str]]:
    """Return the turns of a conversation, and the fields that they leave out.

    Messages of one role in a row are one turn, as Anthropic's are. A user's results come before the text beside them.

    Args:
        messages: each with its role and its blocks.
        own_thinking: as in `MessagesRequest.conversation`.
    """
    drafts: list[_Draft] = []
    ignored: list[str] = []
    for index, (role, blocks) in enumerate(messages):
        draft = _Draft(role, f"messages[{index}]", [])
        for number, block in enumerate(blocks):
            path = f"{draft.at}.content[{number}]"
            if block.type == "tool_result":
                drafts.append(_result(block, path, ignored))
            elif (left_out := draft.add(block, path, own_thinking)) is not None:
                ignored.append(left_out)
        draft.parts = _joined_parts(draft.parts)
        is_result_alone = drafts and drafts[-1].role == "tool" and not draft.parts and role == "user"
        if is_result_alone:
            continue
        if drafts and drafts[-1].role == role:
            drafts[-1].append(draft)
        else:
            drafts.append(draft)
    return [draft.turn() for draft in drafts], ignored


def _joined_parts(parts: Iterable[Part]) -> list[Part]:
    """Return parts with the texts between images as one, and without empty ones."""
    result: list[Part] = []
    for part in parts:
        last = result[-1] if result else None
        if isinstance(part, ImagePart):
            result.append(part)
        elif isinstance(last, TextPart):
            result[-1] = TextPart(joined([last.text, part.text]), last.at)
        elif part.text:
            result.append(part)
    return result


def _result(block: Block, path: str, ignored: list[str]) -> _Draft:
    shown: list[Part] = []
    for number, part in enumerate(block.content or ()):
        part_path, text = f"{path}.content[{number}]", part.as_text()
        if part.type == "image" and image_of_source(part.source) is not None:
            shown.append(_image_part(part, part_path))
        elif text is None:  # the rest of the result is still worth reading
            ignored.append(f"{part_path}.type")
        else:
            shown.append(TextPart(text, f"{part_path}.text"))
    parts: list[Part] = _joined_parts(shown)
    if block.is_error:  # templates have no other place for it
        match parts:
            case [TextPart(text, at)]:
                parts[0] = TextPart(f"Error: {text}", at)
            case _:
                parts.insert(0, TextPart("Error: ", path))
    return _Draft("tool", path, parts, call_id=block.tool_use_id)


def _image_part(block: _Readable, path: str) -> ImagePart:
    return ImagePart(image_of_source(block.source) or "", "auto", f"{path}.source", f"{path}.type")
