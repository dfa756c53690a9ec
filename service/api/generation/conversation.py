"""The messages of a chat request as a chat template expects them."""

from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from service.api.schema.chat import Message, ToolCall
from service.errors import InvalidParameter, MissingParameter


def conversation(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages with plain text, known roles and parsed tool arguments.

    A developer's message is the system's, under its newer name.

    Raises:
        MissingParameter: a message has no content.
        InvalidParameter: a message has a field that its role cannot have, or broken tool arguments.
    """
    return [_turn(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _turn(message: Message, path: str) -> dict[str, Any]:
    is_assistant = message.role == "assistant"
    if message.tool_calls and not is_assistant:
        raise InvalidParameter(f"Invalid '{path}.tool_calls': only the assistant calls.", param=f"{path}.tool_calls")
    if message.tool_call_id is not None and message.role != "tool":
        param = f"{path}.tool_call_id"
        raise InvalidParameter(f"Invalid '{param}': only a tool answers a call.", param=param)
    if message.content is None and not message.tool_calls:
        raise MissingParameter(f"{path}.content")
    turn: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": "".join(part.text for part in message.content or ()),
    }
    if message.name is not None:
        turn["name"] = message.name
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        turn["tool_calls"] = [_call(call, f"{path}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls)]
    return turn


def _call(call: ToolCall, path: str) -> dict[str, Any]:
    """Return a call whose arguments are an object, as templates write them; over the wire they are a text."""
    param = f"{path}.function.arguments"
    try:
        arguments = from_json(call.function.arguments, allow_inf_nan=False)
    except ValueError:
        raise InvalidParameter(f"Invalid '{param}': it must be JSON.", param=param) from None
    if not isinstance(arguments, dict):
        raise InvalidParameter(f"Invalid '{param}': it must be a JSON object.", param=param)
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}
