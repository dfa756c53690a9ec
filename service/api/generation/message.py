"""The assistant's message of one choice, in parts as OpenAI streams them and as a whole.

Source: https://platform.openai.com/docs/api-reference/chat-streaming/streaming#chat_streaming-streaming-choices,
https://platform.openai.com/docs/guides/function-calling (the finish reason of a forced function)
"""

import secrets
import string
import uuid
from collections.abc import Iterable

from service.api.answers.generation import (
    CalledFunction,
    ChatDelta,
    ChatFinishReason,
    ChatMessage,
    ToolCallAnswer,
    ToolCallDelta,
)
from service.api.generation.answer_rules import AnswerRules
from service.api.generation.streams import TextDelta
from service.engine.request import FinishReason
from service.text.formats.format import Format
from service.text.formats.history import SHORT_ID_CHARS
from service.text.formats.parts import Arguments, CallStart, Content, Part, Thought


class MessageParts:
    """Turns the parts of one answer into those of a choice's message."""

    def __init__(self, rules: AnswerRules, *, has_function_call: bool = False) -> None:
        """Begin a message.

        Args:
            rules: the rules that the answer follows.
            has_function_call: whether a call is written as in OpenAI's older interface.
        """
        self._use = rules.use
        self._num_calls = 0
        self._is_inside_call = False  # at the end
        self._has_function_call = has_function_call

    def push(self, delta: TextDelta) -> list[ChatDelta]:
        """Return the `delta` objects that the next parts make, in order."""
        parts = self._push(delta)
        return [_with_function_call(part) for part in parts] if self._has_function_call else parts

    def whole(self, deltas: Iterable[TextDelta]) -> ChatMessage:
        """Return the message that consists of these parts."""
        message = _whole(part for delta in deltas for part in self._push(delta))
        if self._has_function_call and (calls := message.pop("tool_calls", None)):
            message["function_call"] = calls[0]["function"]
        return message

    def finish_reason(self, reason: FinishReason) -> ChatFinishReason:
        """Return OpenAI's reason: that calls were made, unless the request forced it or the answer was cut."""
        has_calls = self._num_calls > 0 and not self._is_inside_call
        is_forced = self._use is not None and self._use.is_named
        if reason is not FinishReason.STOP:
            return "length"
        if not has_calls or is_forced:
            return "stop"
        return "function_call" if self._has_function_call else "tool_calls"

    def _push(self, delta: TextDelta) -> list[ChatDelta]:
        self._is_inside_call = delta.is_inside_call
        return [self._delta(part) for part in delta.parts]

    def _delta(self, part: Part) -> ChatDelta:
        match part:
            case Thought(text):
                return {"reasoning_content": text, "reasoning": text}
            case Content(text):
                return {"content": text}
            case CallStart(index, name, written_id):
                self._num_calls += 1
                assert self._use is not None, "calls are only parsed where tools are used"
                call: ToolCallDelta = {
                    "index": index,
                    "id": written_id or _new_id(self._use.tool_format),
                    "type": "function",
                    "function": {"name": name, "arguments": ""},
                }
                return {"tool_calls": [call]}
            case Arguments(index, text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _whole(deltas: Iterable[ChatDelta]) -> ChatMessage:
    """Return the message that consists of these parts; its content is null if it only thinks or calls tools."""
    content: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCallAnswer] = []
    for delta in deltas:
        content += [delta["content"]] if "content" in delta else []
        thoughts += [delta["reasoning"]] if "reasoning" in delta else []
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            if "id" in call:
                named: CalledFunction = {"name": function.get("name", ""), "arguments": function["arguments"]}
                calls.append({"id": call["id"], "type": "function", "function": named})
            else:
                # Defends against T10.
                calls[call["index"]]["function"]["arguments"] += function["arguments"]
    message: ChatMessage = {
        "role": "assistant",
        "content": "".join(content) if content or not (calls or thoughts) else None,
        "refusal": None,
    }
    # Without thinking the keys are absent: clients keep null values of keys that they do not know, and send them back.
    if thoughts:
        message["reasoning_content"] = message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _with_function_call(part: ChatDelta) -> ChatDelta:
    """Return a `delta` object whose call is stated as OpenAI's older interface does."""
    if not (calls := part.get("tool_calls")):
        return part
    stated: ChatDelta = {**part, "function_call": calls[0]["function"]}
    del stated["tool_calls"]
    return stated


def _new_id(tool_format: Format) -> str:
    if tool_format.id_form == "short":
        return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(SHORT_ID_CHARS))
    return f"call_{uuid.uuid4().hex}"
