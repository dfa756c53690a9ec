"""The thinking that a model writes before its answer, between tags; the white space next to a tag belongs to neither.

Source: https://huggingface.co/Qwen/Qwen3-8B#switching-between-thinking-and-non-thinking-mode,
https://api-docs.deepseek.com/guides/reasoning_model
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

from service.text.tokenizer import Tokenizer

OPENING, CLOSING = "<think>", "</think>"


class ThinkingTags(NamedTuple):
    """The tags as tokens of a vocabulary."""

    opening_id: int
    closing_id: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self | None:
        """Return the tags of a vocabulary; None unless each is one token."""
        opening_id, closing_id = map(tokenizer.id_of, (OPENING, CLOSING))
        return None if opening_id is None or closing_id is None else cls(opening_id, closing_id)


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A piece of the answer itself."""

    text: str


class ThinkingParser:
    """Splits one text; the joined results for its pieces do not depend on where it was cut."""

    def __init__(self, *, is_open: bool, keeps_space: bool = False) -> None:
        """Begin a text.

        Args:
            is_open: the prompt has the opening tag already.
            keeps_space: white space behind the closing tag belongs to the answer, as where a grammar has chosen it.
        """
        self._text = ""  # not decided yet
        self._is_thinking = is_open
        self._is_decided = is_open  # whether the text has begun with the opening tag or with something else
        self._has_begun = is_open
        self._is_at_tag = is_open  # whether white space that follows is next to a tag
        self._keeps_space = keeps_space
        self._num_read = 0

    @property
    def num_held(self) -> int:
        """Characters at the end of the text that are in no piece yet."""
        return len(self._text)

    @property
    def num_pieces(self) -> int:
        """The pushes with thinking so far, up to the closing tag; 0 while the text may begin with something else."""
        return self._num_read if self._has_begun else 0

    @property
    def has_begun(self) -> bool:
        """Whether the text has thinking."""
        return self._has_begun

    @property
    def is_over(self) -> bool:
        """Whether all that follows is the answer."""
        return self._is_decided and not self._is_thinking

    def push(self, text: str) -> list[Thought | Answer]:
        """Append text and return the pieces that it completes or continues."""
        self._num_read += not self.is_over
        self._text += text
        if not self._is_decided:
            self._decide(is_over=False)
        return list(self._pieces(is_over=False)) if self._is_decided else []

    def flush(self) -> list[Thought | Answer]:
        """Return the text that was held back, at the end."""
        if not self._is_decided:
            self._decide(is_over=True)
        return list(self._pieces(is_over=True))

    def _decide(self, *, is_over: bool) -> None:
        begun = self._text.lstrip()
        if begun.startswith(OPENING):
            self._text = begun.removeprefix(OPENING)
            self._is_decided = self._has_begun = self._is_thinking = self._is_at_tag = True
        elif is_over or not OPENING.startswith(begun):
            self._is_decided = True

    def _pieces(self, *, is_over: bool) -> Iterator[Thought | Answer]:
        if self._is_thinking:
            thought, tag, rest = self._text.partition(CLOSING)
            if tag:
                yield from self._thought(thought.rstrip())
                self._text, self._is_thinking, self._is_at_tag = rest, False, not self._keeps_space
            else:
                held = 0 if is_over else _held(thought)
                self._text = thought[len(thought) - held :]
                yield from self._thought(thought[: len(thought) - held])
                return
        if self._is_at_tag:
            self._text = self._text.lstrip()
        if self._text:
            self._is_at_tag = False
            yield Answer(self._text)
            self._text = ""

    def _thought(self, text: str) -> Iterator[Thought]:
        if self._is_at_tag:
            text = text.lstrip()
        if text:
            self._is_at_tag = False
            yield Thought(text)


@dataclass(frozen=True, slots=True)
class ChatThinking:
    """The thinking that each answer to a chat may begin with."""

    tags: ThinkingTags | None  # None if a tag is several tokens
    is_open: bool  # the prompt has the opening tag
    is_over: bool  # the prompt has the closing tag, or the beginning of the answer
    is_held: bool  # a grammar constrains the answer
    keeps_space: bool = False  # and its text may begin with white space

    def parser(self) -> ThinkingParser:
        """Return a parser of one answer."""
        return ThinkingParser(is_open=self.is_open, keeps_space=self.keeps_space)


def _held(thought: str) -> int:
    """Return how many characters at the end may be white space before the closing tag, or a part of the tag."""
    length = next((n for n in range(min(len(CLOSING) - 1, len(thought)), 0, -1) if CLOSING.startswith(thought[-n:])), 0)
    before = thought[: len(thought) - length]
    return length + len(before) - len(before.rstrip())
