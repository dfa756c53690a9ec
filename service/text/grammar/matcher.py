"""A compiled grammar, and the state of one sequence in it: which tokens may come next, and whether the text may end."""

from collections.abc import Callable, Sequence, Set
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
from jaxtyping import UInt

from service.engine.token_mask import bits_by_word
from service.errors import ConstraintError

if TYPE_CHECKING:
    from llguidance import LLMatcher


@dataclass(slots=True)
class Grammar:
    """A compiled grammar; its sequences share what has been computed of it."""

    compiled: "LLMatcher"
    end_ids: frozenset[int]  # tokens that the library lets end a text
    vocab_size: int
    param: str  # the request's field that states it
    tokenize: Callable[[bytes], Sequence[int]]  # returns tokens of these bytes, any that there are
    has_failed: bool = False  # a sequence met a limit, which the others may share

    def matcher(self, stop_ids: Set[int]) -> "GrammarMatcher":
        """Return the beginning of a text, in microseconds; tokens of `stop_ids`, at least one, end it."""
        known = {token_id for token_id in stop_ids if token_id < self.vocab_size}
        return GrammarMatcher(self.compiled.deep_copy(), known, self.end_ids - known, self._failure)

    def end_check(self) -> "GrammarText":
        """Return the beginning of a text, by which it is known where it may end."""
        return GrammarText(self.compiled.deep_copy(), self.tokenize)

    def _failure(self, cause: str) -> ConstraintError:
        self.has_failed = True
        message = f"Invalid '{self.param}': the answer cannot be held to it any further ({cause}). Simplify it."
        return ConstraintError(message, param=self.param)


class GrammarMatcher:
    """Holds one sequence to a grammar; an engine's `Constraint`.

    A token that ends the sequence is allowed exactly where the grammar may end, and alone where it must.
    """

    def __init__(
        self,
        matcher: "LLMatcher",
        stop_ids: Set[int],
        other_end_ids: Set[int],
        failure: Callable[[str], ConstraintError],
    ) -> None:
        """Begin a text.

        Args:
            matcher: a copy of its own; changed as tokens are accepted.
            stop_ids: tokens that end the sequence, at least one.
            other_end_ids: tokens that the library would allow at the end although they do not end this sequence.
            failure: returns the error to raise, from its cause.
        """
        self._matcher = matcher
        self._failure = failure
        stop_words = bits_by_word(stop_ids)
        words = bits_by_word(stop_ids | other_end_ids)
        self._positions = np.fromiter(words, np.intp)
        self._cleared = ~np.fromiter(words.values(), np.uint32)
        self._stops = np.fromiter((stop_words.get(word, 0) for word in words), np.uint32)

    @property
    def is_free(self) -> bool:
        """Whether every token is allowed: never, since text itself excludes the special tokens that it cannot have."""
        return False

    def copy(self) -> Self:
        """Return a matcher of the same text, which advances by itself."""
        copied = copy(self)
        copied._matcher = self._matcher.deep_copy()
        return copied

    def forced_tokens(self) -> list[int]:
        """Return the tokens of the text that the grammar leaves no choice about, as the tokenizer writes it."""
        return self._matcher.compute_ff_tokens()

    def fill_mask(self, words: UInt[np.ndarray, " word"]) -> None:
        """Write the mask of the tokens that may be sampled next: bit `t % 32` of word `t // 32` for token `t`.

        Raises:
            ConstraintError: the grammar has become too complex to go on.
        """
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        can_end = self._matcher.is_accepting()
        if self._matcher.is_error() or (self._matcher.is_stopped() and not can_end):
            raise self._error()
        words[self._positions] &= self._cleared
        if can_end:
            words[self._positions] |= self._stops

    def accept(self, token_id: int) -> None:
        """Advance by the token that was sampled.

        Raises:
            ConstraintError: the token is not allowed here.
        """
        if not self._matcher.consume_token(token_id):
            raise self._error()

    def _error(self) -> ConstraintError:
        return self._failure(first_line(self._matcher.get_error()) or self._matcher.stop_reason())


class GrammarText:
    """A text that a grammar holds, apart from the sequence that writes it."""

    def __init__(self, matcher: "LLMatcher", tokenize: Callable[[bytes], Sequence[int]]) -> None:
        """Begin a text; the matcher is a copy of its own."""
        self._matcher, self._tokenize = matcher, tokenize

    def advance(self, text: str) -> None:
        """Append text."""
        self._matcher.consume_tokens(list(self._tokenize(text.encode())))

    def may_end_behind(self, text: str) -> bool:
        """Return whether the whole text may end with this, which is not appended."""
        matcher = self._matcher.deep_copy()
        return matcher.consume_tokens(list(self._tokenize(text.encode()))) and matcher.is_accepting()


def first_line(error: str) -> str:
    """Return what the library says first, which is all that is fit for a client."""
    lines = [line for line in error.strip().splitlines() if line and not line.startswith("<")]
    if lines and lines[0].startswith("panic"):  # an index of 16 bits overflowed
        return "it is too large"
    if lines and lines[0].startswith("NoExtension"):  # the library's name for it
        return "no text satisfies it"
    return lines[0][:300] if lines else ""
