"""A grammar that begins where a model's thinking ends.

prompt … <think>      thinking </think> text of the grammar
prompt …              <think> thinking </think> text of the grammar, or text of the grammar at once

Behind the closing tag a model writes the blank line that its template writes there. Where white space is no part of the
answer, the grammar begins behind it.
"""

from collections.abc import Iterable, Set
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from jaxtyping import UInt

from service.engine.token_mask import allow, exclude
from service.text.grammar.matcher import Grammar, GrammarMatcher
from service.text.tokenizer import Tokenizer

MAX_SPACES = 2  # a blank line, of a vocabulary without a token of two line ends


def space_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    """Return the tokens that are the ends of one line or two."""
    found = (tokenizer.encode(text, add_special_tokens=False) for text in ("\n", "\n\n"))
    return frozenset(ids[0] for ids in found if len(ids) == 1)


class ThinkingTags(NamedTuple):
    """Tags as tokens of a vocabulary."""

    opening_id: int
    closing_id: int

    @classmethod
    def of(cls, thinking: Iterable[tuple[str, str]], tokenizer: Tokenizer) -> Self | None:
        """Return the first tags of which each is one token; None if there are none."""
        for opening, closing in thinking:
            opening_id, closing_id = tokenizer.id_of(opening), tokenizer.id_of(closing)
            if opening_id is not None and closing_id is not None:
                return cls(opening_id, closing_id)
        return None


@dataclass(frozen=True, slots=True)
class GrammarBehindThinking:
    """A grammar of the answers of a model that thinks first."""

    grammar: Grammar
    tags: ThinkingTags
    is_open: bool  # the prompt has the opening tag already
    may_end: bool  # a text may end while it thinks; otherwise it ends where the grammar does
    space_ids: frozenset[int] = frozenset()  # tokens that may come between the closing tag and the grammar's text

    def matcher(self, stop_ids: Set[int]) -> "MatcherBehindThinking":
        """Return the beginning of a text, in microseconds; tokens of `stop_ids`, at least one, end it."""
        held_back = frozenset[int]() if self.may_end else frozenset(stop_ids)
        answer = self.grammar.matcher(stop_ids)
        return MatcherBehindThinking(answer, self.tags, held_back, self.space_ids, is_open=self.is_open)


class MatcherBehindThinking:
    """Holds one sequence to a grammar from its closing tag on; an engine's `Constraint`."""

    def __init__(
        self,
        answer: GrammarMatcher,
        tags: ThinkingTags,
        held_back_ids: Set[int],
        space_ids: Set[int] = frozenset(),
        *,
        is_open: bool,
    ) -> None:
        """Begin a text.

        Args:
            answer: holds what follows the thinking.
            tags: the tokens around the thinking.
            held_back_ids: tokens that must not come within the thinking.
            space_ids: tokens of which `MAX_SPACES` may come behind the closing tag.
            is_open: whether the text begins within the thinking; otherwise its first token decides.
        """
        self._answer, self._tags, self._held_back_ids = answer, tags, held_back_ids
        self._space_ids, self._num_spaces = space_ids, 0  # how many of them may come
        self._is_thinking = is_open
        self._may_begin_thinking = not is_open

    @property
    def is_free(self) -> bool:
        """Whether every token is allowed."""
        return self._is_thinking and not self._held_back_ids

    def copy(self) -> Self:
        """Return a matcher of the same text, which advances by itself."""
        copied = copy(self)
        copied._answer = self._answer.copy()
        return copied

    def forced_tokens(self) -> list[int]:
        """Return the tokens that the grammar leaves no choice about; none while the model thinks, or may begin to."""
        is_of_grammar = not (self._is_thinking or self._may_begin_thinking or self._num_spaces)
        return self._answer.forced_tokens() if is_of_grammar else []

    def fill_mask(self, words: UInt[np.ndarray, " word"]) -> None:
        """Write the mask of the tokens that may be sampled next: bit `t % 32` of word `t // 32` for token `t`.

        Raises:
            ConstraintError: the grammar has become too complex to go on.
        """
        if self._is_thinking:
            words.fill(np.iinfo(words.dtype).max)
            exclude(words, self._held_back_ids)
            return
        self._answer.fill_mask(words)
        if self._may_begin_thinking:
            allow(words, [self._tags.opening_id])
        if self._num_spaces:
            allow(words, self._space_ids)

    def accept(self, token_id: int) -> None:
        """Advance by the token that was sampled.

        Raises:
            ConstraintError: the token is not allowed here.
        """
        if self._is_thinking:
            self._is_thinking = token_id != self._tags.closing_id
            self._num_spaces = 0 if self._is_thinking else MAX_SPACES
        elif self._may_begin_thinking and token_id == self._tags.opening_id:
            self._is_thinking = True
        elif self._num_spaces and token_id in self._space_ids:
            self._num_spaces -= 1
        else:
            self._num_spaces = 0
            self._answer.accept(token_id)
        self._may_begin_thinking = False
