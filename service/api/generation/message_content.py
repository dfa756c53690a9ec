"""The content of an answer to Anthropic's Messages, block by block, and the events with which a stream builds it.

    message_start
      content_block_start, content_block_delta …, content_block_stop
      (text_delta; thinking_delta … and one signature_delta; or input_json_delta of a call)
    message_delta, message_stop

Source: https://docs.anthropic.com/en/docs/build-with-claude/streaming
"""

from collections.abc import Callable, Iterator
from typing import Any

from pydantic_core import from_json

from service.api.answers.generation import ChatDelta
from service.api.answers.messages import AnswerBlock

Event = dict[str, Any]


class MessageContent:
    """Collects the parts of an answer as content blocks; every event also changes what `blocks` returns."""

    def __init__(self, proof_of: Callable[[str], str], *, shows_thinking: bool) -> None:
        """Begin an answer.

        Args:
            proof_of: returns what a thinking's signature is.
            shows_thinking: whether the text of the thinking is sent too.
        """
        self._proof_of, self._shows_thinking = proof_of, shows_thinking
        self.blocks: list[AnswerBlock] = []  # complete once the last one is closed
        self._texts: list[str] = []  # of the last block
        self._is_open = False  # whether the last block can still grow

    def push(self, part: ChatDelta) -> Iterator[Event]:
        """Add a part of a chat's message, a `delta` object as `MessageParts` returns them, and yield its events."""
        if "reasoning" in part:
            yield from self._open({"type": "thinking", "thinking": "", "signature": ""})
            self._texts.append(part["reasoning"])
            if self._shows_thinking:
                yield self._delta({"type": "thinking_delta", "thinking": part["reasoning"]})
        if "content" in part:
            yield from self._open({"type": "text", "text": "", "citations": None})
            self._texts.append(part["content"])
            yield self._delta({"type": "text_delta", "text": part["content"]})
        for call in part.get("tool_calls", ()):
            name, arguments = call["function"].get("name", ""), call["function"]["arguments"]
            if "id" in call:
                caller = {"type": "direct"}
                yield from self._open(
                    {"type": "tool_use", "id": call["id"], "name": name, "caller": caller, "input": {}}
                )
            if arguments:
                self._texts.append(arguments)
                yield self._delta({"type": "input_json_delta", "partial_json": arguments})

    def close(self) -> Iterator[Event]:
        """End the last block, if there is one, and yield its events."""
        if not self._is_open:
            return
        self._is_open = False
        block, text = self.blocks[-1], "".join(self._texts)
        if block["type"] == "thinking":
            block["signature"] = self._proof_of(text)
            block["thinking"] = text if self._shows_thinking else ""
            yield self._delta({"type": "signature_delta", "signature": block["signature"]})
        elif block["type"] == "text":
            block["text"] = text
        else:
            block["input"] = _input(text)
        yield {"type": "content_block_stop", "index": len(self.blocks) - 1}

    @property
    def has_calls(self) -> bool:
        """Whether tools are called."""
        return any(block["type"] == "tool_use" for block in self.blocks)

    def _open(self, block: AnswerBlock) -> Iterator[Event]:
        """Begin a block, unless the last one is of its kind and goes on."""
        if self._is_open and block["type"] == self.blocks[-1]["type"] != "tool_use":
            return
        yield from self.close()
        self.blocks.append(block)
        self._texts, self._is_open = [], True
        # The block changes when it is closed, while this event may wait to be sent.
        yield {"type": "content_block_start", "index": len(self.blocks) - 1, "content_block": block.copy()}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}


def _input(text: str) -> dict[str, Any]:
    """Return the input of a call, as far as it was written if a limit cut it."""
    try:
        found = from_json(text or "{}", allow_partial=True)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
