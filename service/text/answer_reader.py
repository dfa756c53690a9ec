"""The regions of an answer as its text arrives: thinking, content and calls.

Whatever else is tied to an answer's text, such as stop strings and log-probabilities, is tied to these parts, which are
what a client sees, and never to the marks between them.
"""

from collections.abc import Iterable
from typing import Protocol

from service.text.thinking import Answer, ThinkingParser, Thought
from service.text.tools.parser import CallParser
from service.text.tools.parts import Arguments, CallStart, Content

Part = Thought | Content | CallStart | Arguments


class Reader(Protocol):
    """Reads the text of one answer."""

    @property
    def num_held(self) -> int:
        """Characters at the end of the text that belong to no part yet."""
        ...

    @property
    def num_thinking(self) -> int:
        """How many of the pieces that were pushed are thinking, so far, its marks included."""
        ...

    @property
    def is_inside_call(self) -> bool:
        """Whether a call has begun and has not ended."""
        ...

    def push(self, text: str) -> list[Part]:
        """Append text and return the parts that it completes or continues."""
        ...

    def flush(self) -> list[Part]:
        """Return the parts of the text that was held back, at the end."""
        ...


class AnswerReader:
    """Reads thinking between tags, and then calls in a known format."""

    def __init__(self, thinking: ThinkingParser | None, calls: CallParser | None) -> None:
        """Begin an answer; None where it has no thinking, or no calls."""
        self._thinking, self._calls = thinking, calls

    @property
    def num_held(self) -> int:
        """Characters at the end of the text that belong to no part yet."""
        return sum(parser.num_held for parser in (self._thinking, self._calls) if parser is not None)

    @property
    def num_thinking(self) -> int:
        """How many of the pieces that were pushed are thinking, so far, its tags included."""
        return 0 if self._thinking is None else self._thinking.num_pieces

    @property
    def is_inside_call(self) -> bool:
        """Whether a call has begun and has not ended."""
        return self._calls is not None and self._calls.is_inside_call

    def push(self, text: str) -> list[Part]:
        """Append text and return the parts that it completes or continues."""
        return self._parts([Answer(text)] if self._thinking is None else self._thinking.push(text), is_over=False)

    def flush(self) -> list[Part]:
        """Return the parts of the text that was held back, at the end."""
        return self._parts([] if self._thinking is None else self._thinking.flush(), is_over=True)

    def _parts(self, pieces: Iterable[Thought | Answer], *, is_over: bool) -> list[Part]:
        parts: list[Part] = []
        answer = ""
        for piece in pieces:
            if isinstance(piece, Thought):
                parts.append(piece)
            else:
                answer += piece.text
        if self._calls is None:
            return [*parts, *([Content(answer)] if answer else [])]
        return [*parts, *self._calls.push(answer), *(self._calls.flush() if is_over else [])]
