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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any

from service.api.answers.generation import ChatDelta, TokenLogprob, ToolCallDelta
from service.api.answers.responses import (
    ItemStatus,
    OutputCall,
    OutputCustomCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputShellCall,
)
from service.api.schema.response_tools import INPUT, LOCAL_SHELL, OfferedTool
from service.engine.request import FinishReason

Event = dict[str, Any]

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
        self.items: list[OutputItem] = []
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
        item = self.items[-1] if self._is_open else None
        if item is None or item["type"] != "message":
            yield from self._close()
            item = yield from self._open_message()
        [content] = item["content"]
        content["text"] += text
        content["logprobs"] += logprobs
        yield self._event("output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def _push_thought(self, text: str) -> Iterator[Event]:
        item = self.items[-1] if self._is_open else None
        if item is None or item["type"] != "reasoning":
            yield from self._close()
            item = OutputReasoning(
                type="reasoning", id=f"rs_{uuid.uuid4().hex}", status="in_progress", summary=[], content=[]
            )
            yield self._open(item)
            item["content"].append({"type": "reasoning_text", "text": ""})
            yield self._event("content_part.added", content_index=0, part=item["content"][0].copy())
        item["content"][0]["text"] += text
        yield self._event("reasoning_text.delta", content_index=0, delta=text)

    def _open_message(self) -> Generator[Event, None, OutputMessage]:
        message = OutputMessage(
            type="message", id=f"msg_{uuid.uuid4().hex}", status="in_progress", role="assistant", content=[]
        )
        yield self._open(message)
        message["content"].append({"type": "output_text", "text": "", "annotations": [], "logprobs": []})
        yield self._event("content_part.added", content_index=0, part=_copy(message["content"][0]))
        return message

    def _push_call(self, call: ToolCallDelta) -> Iterator[Event]:
        function = call["function"]
        if "id" in call:
            yield from self._close()
            yield self._open(self._begun_call(call["id"], function.get("name", "")))
        item, text = self.items[-1], function["arguments"]
        if item["type"] == "local_shell_call":
            self._command += text
        elif item["type"] == "custom_tool_call":
            if text := self._input.push(text):
                item["input"] += text
                yield self._event("custom_tool_call_input.delta", delta=text)
        elif item["type"] == "function_call" and text:
            item["arguments"] += text
            yield self._event("function_call_arguments.delta", delta=text)

    def _begun_call(self, call_id: str, function_name: str) -> OutputCall | OutputCustomCall | OutputShellCall:
        """Return the item of a call of the tool that a function stands for."""
        tool = self._tools.get(function_name)
        if tool is not None and tool.type == LOCAL_SHELL:
            self._command = ""
            return {
                "type": "local_shell_call",
                "status": "in_progress",
                "id": f"lsh_{uuid.uuid4().hex}",
                "call_id": call_id,
                "action": _action(""),
            }
        name = function_name if tool is None else tool.name
        item: OutputCall | OutputCustomCall
        if tool is not None and tool.type == "custom":
            self._input, new_id = _CustomInput(), f"ctc_{uuid.uuid4().hex}"
            item = OutputCustomCall(
                type="custom_tool_call", status="in_progress", id=new_id, call_id=call_id, name=name, input=""
            )
        else:
            new_id = f"fc_{uuid.uuid4().hex}"
            item = OutputCall(
                type="function_call", status="in_progress", id=new_id, call_id=call_id, name=name, arguments=""
            )
        if tool is not None and tool.namespace is not None:
            item["namespace"] = tool.namespace
        return item

    def _open(self, item: OutputItem) -> Event:
        self.items.append(item)
        self._is_open = True
        return self._item_event("output_item.added")

    def _close(self, status: ItemStatus = "completed") -> Iterator[Event]:
        if not self._is_open:
            return
        item = self.items[-1]
        if item["type"] == "message" or item["type"] == "reasoning":
            [content] = item["content"]
            done = {"logprobs": content["logprobs"]} if content["type"] == "output_text" else {}
            yield self._event(f"{content['type']}.done", content_index=0, text=content["text"], **done)
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


def _copy(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item as it is now, since it grows while earlier events may wait to be sent."""
    return {
        name: [_copy(part) for part in value]
        if name == "content"
        else list(value)
        if isinstance(value, list)
        else value
        for name, value in item.items()
    }
