"""The output of a response, item by item, and the events with which a stream builds it.

    response.created, response.in_progress
      response.output_item.added
        response.content_part.added, response.output_text.delta …, response.output_text.done, response.content_part.done
        (in an item of thinking response.reasoning_text.delta …, response.reasoning_text.done)
        or response.function_call_arguments.delta …, response.function_call_arguments.done
        or response.custom_tool_call_input.delta …, response.custom_tool_call_input.done
      response.output_item.done
    response.completed or response.incomplete

Source: https://platform.openai.com/docs/api-reference/responses-streaming
"""

import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from service.api.answers.generation import ChatDelta, TokenLogprob, ToolCallDelta
from service.api.schema.response_tools import INPUT, OfferedTool
from service.engine.request import FinishReason

Event = dict[str, Any]

# Of each kind of call what grows, and the name of the events that report it.
_GROWING = {
    "function_call": ("arguments", "function_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
}
_INPUT_BEGINS = re.compile(rf'\s*{{\s*"{INPUT}"\s*:\s*"')
_INPUT_GOES_ON = re.compile(r'(?:[^"\\]+|\\(?:u[0-9a-fA-F]{4}|[^u]))*')


class ResponseOutput:
    """Collects the parts of an answer as output items; every event also changes what `items` has."""

    def __init__(self, tools: Iterable[OfferedTool] = (), seal: Callable[[str], str] | None = None) -> None:
        """Begin an answer.

        Args:
            tools: that it may call.
            seal: returns thinking as a text that no other reads; None if the request has not asked for it.
        """
        self._tools = {tool.function_name: tool for tool in tools}
        self._seal = seal
        self._input = _CustomInput()  # of the last call of a custom tool
        self._command = ""  # the arguments of the last call of the local shell
        self.items: list[dict[str, Any]] = []
        self._is_open = False  # whether the last item can still grow

    def push(self, part: ChatDelta, logprobs: list[TokenLogprob]) -> Iterator[Event]:
        """Add a part of a chat's message, and yield its events.

        Args:
            part: a `delta` object, as `MessageParts` returns them.
            logprobs: the log-probabilities of the part's tokens, if it is text and they are requested.
        """
        if "reasoning" in part:
            yield from self._push_thought(part["reasoning"])
        if "content" in part:
            yield from self._push_text(part["content"], logprobs)
        for call in part.get("tool_calls", ()):
            yield from self._push_call(call)

    def close(self, reason: FinishReason) -> Iterator[Event]:
        """End the last item, and yield its events; an answer without any is a message without text."""
        if not self.items:
            yield from self._open_message()
        yield from self._close("incomplete" if reason is FinishReason.LENGTH else "completed")

    def _push_text(self, text: str, logprobs: list[TokenLogprob]) -> Iterator[Event]:
        if not self._is_open or self.items[-1]["type"] != "message":
            yield from self._close()
            yield from self._open_message()
        [content] = self.items[-1]["content"]
        content["text"] += text
        content["logprobs"] += logprobs
        yield self._event("output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def _push_thought(self, text: str) -> Iterator[Event]:
        if not self._is_open or self.items[-1]["type"] != "reasoning":
            yield from self._close()
            item = {"type": "reasoning", "id": f"rs_{uuid.uuid4().hex}", "status": "in_progress", "summary": []}
            yield self._open(item | {"content": []})
            yield self._add_content({"type": "reasoning_text", "text": ""})
        self.items[-1]["content"][0]["text"] += text
        yield self._event("reasoning_text.delta", content_index=0, delta=text)

    def _push_call(self, call: ToolCallDelta) -> Iterator[Event]:
        function = call["function"]
        if "id" in call:
            yield from self._close()
            yield self._open(self._begun_call(call["id"], function.get("name", "")))
        yield from self._push_arguments(function["arguments"])

    def _push_arguments(self, arguments: str) -> Iterator[Event]:
        item = self.items[-1]
        if item["type"] == "local_shell_call":
            self._command += arguments
            return
        name, events = _GROWING[item["type"]]
        text = self._input.push(arguments) if item["type"] == "custom_tool_call" else arguments
        if text:
            item[name] += text
            yield self._event(f"{events}.delta", delta=text)

    def _begun_call(self, call_id: str, function_name: str) -> dict[str, Any]:
        """Return the item of a call of the tool that a function stands for."""
        tool = self._tools.get(function_name)
        item: dict[str, Any] = {"type": "function_call", "status": "in_progress", "id": f"fc_{uuid.uuid4().hex}"}
        item |= {"call_id": call_id, "name": function_name if tool is None else tool.name}
        if tool is not None and tool.namespace is not None:
            item["namespace"] = tool.namespace
        if tool is None or tool.type == "function":
            return item | {"arguments": ""}
        if tool.type == "custom":
            self._input = _CustomInput()
            return item | {"type": "custom_tool_call", "id": f"ctc_{uuid.uuid4().hex}", "input": ""}
        del item["name"]
        self._command = ""
        return item | {"type": "local_shell_call", "id": f"lsh_{uuid.uuid4().hex}", "action": _action("")}

    def _open_message(self) -> Iterator[Event]:
        message = {"type": "message", "id": f"msg_{uuid.uuid4().hex}", "status": "in_progress", "role": "assistant"}
        yield self._open(message | {"content": []})
        yield self._add_content({"type": "output_text", "text": "", "annotations": [], "logprobs": []})

    def _open(self, item: dict[str, Any]) -> Event:
        self.items.append(item)
        self._is_open = True
        return self._item_event("output_item.added")

    def _add_content(self, content: dict[str, Any]) -> Event:
        self.items[-1]["content"].append(content)
        return self._event("content_part.added", content_index=0, part=_copy(content))

    def _close(self, status: str = "completed") -> Iterator[Event]:
        if not self._is_open:
            return
        item = self.items[-1]
        if item["type"] in ("message", "reasoning"):
            [content] = item["content"]
            done = {name: content[name] for name in ("text", "logprobs") if name in content}
            yield self._event(f"{content['type']}.done", content_index=0, **done)
            yield self._event("content_part.done", content_index=0, part=_copy(content))
            if item["type"] == "reasoning" and self._seal is not None:
                item["encrypted_content"] = self._seal(content["text"])
        elif item["type"] == "function_call":
            yield self._event("function_call_arguments.done", name=item["name"], arguments=item["arguments"])
        elif item["type"] == "custom_tool_call":
            if status == "completed":
                item["input"] += self._input.flush()
            yield self._event("custom_tool_call_input.done", input=item["input"])
        else:
            item["action"] = _action(self._command)
        item["status"] = status
        self._is_open = False
        yield self._item_event("output_item.done")

    def _item_event(self, kind: str) -> Event:
        return {"type": f"response.{kind}", "output_index": len(self.items) - 1, "item": _copy(self.items[-1])}

    def _event(self, kind: str, **fields: Any) -> Event:
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return {"type": f"response.{kind}", **place, **fields}


class _CustomInput:
    """Reads the text for a custom tool from the arguments of the function that stands for it, `{"input": "…"}`."""

    def __init__(self) -> None:
        self._held = ""  # not read yet
        self._has_begun = self._is_over = False

    def push(self, arguments: str) -> str:
        """Append JSON and return the text that it adds; an escape that is not complete is held back."""
        self._held += arguments
        if not self._has_begun and (begin := _INPUT_BEGINS.match(self._held)) is not None:
            self._has_begun, self._held = True, self._held[begin.end() :]
        if not self._has_begun or self._is_over:
            return ""
        read = _INPUT_GOES_ON.match(self._held)
        assert read is not None, "it may be empty"
        self._held = self._held[read.end() :]
        self._is_over = self._held.startswith('"')
        return json.loads(f'"{read[0]}"', strict=False)

    def flush(self) -> str:
        """Return arguments that are another object, as they are."""
        return "" if self._has_begun else self._held


def _action(arguments: str) -> dict[str, Any]:
    """Return the command of a local shell's call, an empty one if its arguments are not complete."""
    try:
        stated = json.loads(arguments)
    except ValueError:
        stated = {}
    return {"type": "exec", "command": [], "env": {}, **(stated if isinstance(stated, dict) else {})}


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item as it is now, since it grows while earlier events may wait to be sent."""
    return {
        name: [_copy(part) for part in value]
        if name == "content"
        else list(value)
        if isinstance(value, list)
        else value
        for name, value in item.items()
    }
