"""The items of a response's input: messages, calls that the assistant made, their results, and its thinking.

Source: https://platform.openai.com/docs/api-reference/responses/create#responses_create-input
"""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from service.api.schema.wire import ANY, NeutralValues, WireObject
from service.errors import InvalidParameter, MissingParameter

# What each kind of item consists of.
_FIELDS = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": ("content",),
}


def as_items(value: Any) -> Any:
    """Return an input that is a text as the list of its one message."""
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


def _as_parts(value: Any) -> Any:
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


class InputPart(WireObject):
    """A text part; images, audio and files are not supported."""

    hints: ClassVar[NeutralValues] = {  # of an earlier answer
        "annotations": ([],),
        "cache_control": (),
        "logprobs": ANY,
        "parsed": ANY,  # the official clients add it for the answer's reader; the text counts
    }
    supported_types: ClassVar[tuple[str, ...]] = ("input_text", "output_text", "reasoning_text")

    type: Literal["input_text", "output_text", "reasoning_text"]
    text: str


Parts = Annotated[
    list[InputPart],
    Field(fail_fast=True),
    BeforeValidator(_as_parts, json_schema_input_type=str | list[InputPart]),
]


class InputItem(WireObject):
    """One item of the input; `id`, `status` and `phase` are those of an earlier answer, and have no effect."""

    nested: ClassVar[dict[str, type[WireObject]]] = {"content": InputPart, "output": InputPart}
    hints: ClassVar[NeutralValues] = {
        "caller": (),
        "encrypted_content": (),
        "namespace": (),
        "parsed_arguments": ANY,  # of the official clients; the text counts
        "summary": ([],),
    }
    supported_types: ClassVar[tuple[str, ...]] = tuple(_FIELDS)

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    phase: Literal["commentary", "final_answer"] | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Parts | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Parts | None = None

    def check(self, path: str) -> None:
        """Check that the item has what its kind consists of, and nothing else.

        Raises:
            MissingParameter, InvalidParameter: a field is missing, or belongs to another kind.
        """
        own = _FIELDS[self.type]
        for name in sorted({name for names in _FIELDS.values() for name in names}):
            is_stated = getattr(self, name) is not None
            if name in own and not is_stated:
                raise MissingParameter(f"{path}.{name}")
            if name not in own and is_stated:
                param = f"{path}.{name}"
                raise InvalidParameter(f"Invalid '{param}': an item of type '{self.type}' has none.", param=param)


def check_results(items: Iterable[InputItem]) -> None:
    """Check that each result answers a call before it.

    Raises:
        InvalidParameter: no earlier item is the call of a result.
    """
    called: set[str | None] = set()
    for index, item in enumerate(items):
        if item.type == "function_call":
            called.add(item.call_id)
        elif item.type == "function_call_output" and item.call_id not in called:
            param = f"input[{index}].call_id"
            message = f"Invalid '{param}': no earlier item of type 'function_call' has this id. Send the call too."
            raise InvalidParameter(message, param=param)


def messages_of(items: Iterable[InputItem]) -> list[dict[str, Any]]:
    """Return the messages of a chat; thinking and calls belong to the assistant's message between them."""
    messages: list[dict[str, Any]] = []
    thinking: dict[str, str] = {}  # of the assistant's next message
    for item in items:
        if item.type == "reasoning":
            thinking = {"reasoning_content": _text(item.content)}
        elif item.type == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", **thinking})
                thinking = {}
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
        elif item.type == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})
        else:
            messages.append({"role": item.role, "content": _text(item.content), **thinking})
            thinking = {}
    return messages


def _text(parts: Iterable[InputPart] | None) -> str:
    return "".join(part.text for part in parts or ())
