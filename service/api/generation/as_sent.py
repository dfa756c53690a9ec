"""The messages of a chat in the client's own keys and order, with the values that the service has checked.

A template may write a message, a call or a tool as a whole, so that a key more, less or elsewhere is another prompt.
Source: transformers' utils/chat_template_utils.py (_normalize_chat_messages, _alias_reasoning_fields)
"""

from collections.abc import Mapping
from typing import Any

from service.api.conversation import NO_PARAMETERS, Turn
from service.text.chat_template import ChatTemplate

THINKING = "reasoning_content"


def as_sent(message: Mapping[str, Any], turn: Turn, template: ChatTemplate) -> dict[str, Any]:
    """Return a message for a template: the client's keys in its order, then what the service has found out.

    As in transformers, nulls are left out, and thinking is under both names that templates read.

    Args:
        message: the values that templates understand, by key.
        turn: the same as the client sent it.
        template: what will write it.
    """
    sent = turn.sent
    found = dict(message) if sent is None else _ordered(sent, message, has_text_arguments=template.joins_arguments)
    if sent is not None and isinstance(sent.get("content"), list) and isinstance(message["content"], str):
        parts = [{"type": "text", "text": part.text} for part in turn.texts]
        found["content"] = parts if template.reads_parts else message["content"]
    thinking = message.get(THINKING)
    if thinking is None:
        return found
    named = {"thinking": thinking, **({"reasoning": thinking} if template.reads_reasoning else {})}
    return named | found | {THINKING: thinking}


def _ordered(sent: Mapping[str, Any], turn: Mapping[str, Any], *, has_text_arguments: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in sent.items():
        if name == "tool_calls":
            if calls := turn.get(name):
                pairs = zip(value, calls, strict=True)
                found[name] = [_call(stated, call, has_text=has_text_arguments) for stated, call in pairs]
        elif value is not None:
            found[name] = turn.get(name, value)
    return found | {name: value for name, value in turn.items() if name not in found and name != "content"}


def _call(sent: Mapping[str, Any], call: Mapping[str, Any], *, has_text: bool) -> dict[str, Any]:
    function, stated = call["function"], sent.get("function")
    if not isinstance(stated, dict):  # a call of a custom tool
        return dict(call)
    ordered = {**stated, **function}  # a key that both have stays where the client has it
    if has_text and isinstance(text := stated.get("arguments"), str):
        ordered["arguments"] = text
    stated_type = {"type": call["type"]} if sent.get("type") == "" else {}
    return {**sent, **stated_type, "id": call["id"], "function": ordered}


def with_content(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with an empty content if it has none, for templates that read it without looking."""
    return {**turn, "content": turn.get("content", "")}


def with_parameters(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool with parameters if it has none, for templates that read them without looking."""
    function = tool["function"]
    return {**tool, "function": {**function, "parameters": function.get("parameters") or NO_PARAMETERS}}
