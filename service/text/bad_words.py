"""Bad words: token sequences that a text must not have.

The last token of each is excluded wherever it would complete the sequence. A word is excluded as the tokenizer writes
it, with and without a space before it; other spellings are not.

Source: https://github.com/vllm-project/vllm/blob/main/vllm/sampling_params.py (bad_words)
"""

from collections.abc import Collection, Sequence, Set
from copy import copy
from dataclasses import dataclass
from typing import Self

import numpy as np
from jaxtyping import UInt

from service.engine.token_mask import exclude
from service.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class BadWords:
    """The token sequences that all texts of a request must not have."""

    sequences: frozenset[tuple[int, ...]]

    @classmethod
    def of(cls, words: Sequence[str], tokenizer: Tokenizer) -> Self:
        """Return the token sequences of words, each with and without a space before it.

        Raises:
            InvalidParameter: a word has a lone surrogate, which is not a character.
        """
        sequences = {
            tuple(tokenizer.encode(text, add_special_tokens=False, param=f"bad_words[{index}]"))
            for index, word in enumerate(words)
            for text in (word.lstrip(), f" {word.lstrip()}")
        }
        return cls(frozenset(sequences - {()}))

    def matcher(self, stop_ids: Set[int]) -> "BadWordsMatcher":
        """Return the beginning of a text, which any stop token may end."""
        del stop_ids
        return BadWordsMatcher(self.sequences)


class BadWordsMatcher:
    """Keeps one sequence free of bad words; an engine's `Constraint`."""

    def __init__(self, sequences: Collection[tuple[int, ...]]) -> None:
        """Begin a text that must have none of these sequences of token ids, each with at least one."""
        self._sequences = sequences
        self._longest = max(map(len, sequences), default=1)
        self._last: tuple[int, ...] = ()  # of the text's tokens, as many as a sequence may begin with

    @property
    def is_free(self) -> bool:
        """Whether no sequence could be completed by the next token."""
        return not self._excluded()

    def copy(self) -> Self:
        """Return a matcher of the same text, which advances by itself."""
        return copy(self)

    def forced_tokens(self) -> list[int]:
        """Return none: there is always a choice."""
        return []

    def fill_mask(self, words: UInt[np.ndarray, " word"]) -> None:
        """Write the mask of the tokens that may be sampled next: bit `t % 32` of word `t // 32` for token `t`."""
        words.fill(np.iinfo(words.dtype).max)
        exclude(words, self._excluded())

    def accept(self, token_id: int) -> None:
        """Advance by the token that was sampled."""
        self._last = (*self._last, token_id)[max(0, len(self._last) + 2 - self._longest) :]

    def _excluded(self) -> set[int]:
        begun = len(self._last)
        return {
            last
            for *before, last in self._sequences
            if len(before) <= begun and tuple(before) == self._last[begun - len(before) :]
        }
