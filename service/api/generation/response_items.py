"""The output of a response, item by item, and the events with which a stream builds it.

    response.created, response.in_progress
      response.output_item.added
        response.content_part.added, response.output_text.delta …, response.output_text.done, response.content_part.done
        (in an item of thinking response.reasoning_text.delta …, response.reasoning_text.done)
        or response.function_call_arguments.delta …, response.function_call_arguments.done
      response.output_item.done
    response.completed or response.incomplete

Source: https://platform.openai.com/docs/api-reference/responses-streaming
"""

import uuid
from collections.abc import Iterator
from typing import Any

from service.engine.request import FinishReason

Event = dict[str, Any]


class ResponseOutput:
    """Collects the parts of an answer as output items; every event also changes what `items` has."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._is_open = False  # whether the last item can still grow

    def push(self, part: dict[str, Any], logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        """Add a part of a chat's message, and yield its events.

        Args:
            part: a `delta` object, as `MessageParts` returns them.
            logprobs: of the part's tokens, if it is text and they are requested.
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

    def _push_text(self, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
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

    def _push_call(self, call: dict[str, Any]) -> Iterator[Event]:
        function = call["function"]
        if "id" in call:
            yield from self._close()
            identity = {"id": f"fc_{uuid.uuid4().hex}", "call_id": call["id"], "name": function["name"]}
            yield self._open({"type": "function_call", "status": "in_progress", **identity, "arguments": ""})
        if function["arguments"]:
            self.items[-1]["arguments"] += function["arguments"]
            yield self._event("function_call_arguments.delta", delta=function["arguments"])

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
        if item["type"] != "function_call":
            [content] = item["content"]
            done = {name: content[name] for name in ("text", "logprobs") if name in content}
            yield self._event(f"{content['type']}.done", content_index=0, **done)
            yield self._event("content_part.done", content_index=0, part=_copy(content))
        else:
            yield self._event("function_call_arguments.done", name=item["name"], arguments=item["arguments"])
        item["status"] = status
        self._is_open = False
        yield self._item_event("output_item.done")

    def _item_event(self, kind: str) -> Event:
        return {"type": f"response.{kind}", "output_index": len(self.items) - 1, "item": _copy(self.items[-1])}

    def _event(self, kind: str, **fields: Any) -> Event:
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return {"type": f"response.{kind}", **place, **fields}


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
