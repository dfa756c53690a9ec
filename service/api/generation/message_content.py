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

Event = dict[str, Any]
# What a block has besides its text, at its beginning.
_EMPTY: dict[str, dict[str, Any]] = {"text": {"citations": None}, "thinking": {"signature": ""}}


class MessageContent:
    """Collects the parts of an answer as content blocks; every event also changes what `blocks` returns."""

    def __init__(self, proof_of: Callable[[str], str], *, shows_thinking: bool) -> None:
        """Begin an answer.

        Args:
            proof_of: returns what a thinking's signature is.
            shows_thinking: whether the text of the thinking is sent too.
        """
        self._proof_of, self._shows_thinking = proof_of, shows_thinking
        self._blocks: list[dict[str, Any]] = []
        self._texts: list[str] = []  # of the last block
        self._is_open = False  # whether the last block can still grow

    def push(self, part: ChatDelta) -> Iterator[Event]:
        """Add a part of a chat's message, a `delta` object as `MessageParts` returns them, and yield its events."""
        if "reasoning" in part:
            yield from self._push_text("thinking", part["reasoning"], is_shown=self._shows_thinking)
        if "content" in part:
            yield from self._push_text("text", part["content"])
        for call in part.get("tool_calls", ()):
            function = call["function"]
            if "id" in call:
                identity = {"id": call["id"], "name": function.get("name", ""), "caller": {"type": "direct"}}
                yield from self._open({"type": "tool_use", **identity, "input": {}})
            if function["arguments"]:
                self._texts.append(function["arguments"])
                yield self._delta({"type": "input_json_delta", "partial_json": function["arguments"]})

    def close(self) -> Iterator[Event]:
        """End the last block, if there is one, and yield its events."""
        if not self._is_open:
            return
        self._is_open = False
        block, text = self._blocks[-1], "".join(self._texts)
        if block["type"] == "thinking":
            block["signature"] = self._proof_of(text)
            yield self._delta({"type": "signature_delta", "signature": block["signature"]})
        if block["type"] == "tool_use":
            block["input"] = _input(text)
        elif block["type"] == "text" or self._shows_thinking:
            block[block["type"]] = text
        yield {"type": "content_block_stop", "index": len(self._blocks) - 1}

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """The blocks, once the last one is closed."""
        return self._blocks

    @property
    def has_calls(self) -> bool:
        """Whether tools are called."""
        return any(block["type"] == "tool_use" for block in self._blocks)

    def _push_text(self, kind: str, text: str, *, is_shown: bool = True) -> Iterator[Event]:
        if not self._is_open or self._blocks[-1]["type"] != kind:
            yield from self._open({"type": kind, kind: "", **_EMPTY[kind]})
        self._texts.append(text)
        if is_shown:
            yield self._delta({"type": f"{kind}_delta", kind: text})

    def _open(self, block: dict[str, Any]) -> Iterator[Event]:
        yield from self.close()
        self._blocks.append(block)
        self._texts, self._is_open = [], True
        # The block changes when it is closed, while this event may wait to be sent.
        yield {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": dict(block)}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}


def _input(text: str) -> dict[str, Any]:
    """Return the input of a call, as far as it was written if a limit cut it."""
    try:
        found = from_json(text or "{}", allow_partial=True)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
