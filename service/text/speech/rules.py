"""The rule of one window's transcript: which tokens may come next.

    text          <|0.00|> seven four<|1.52|><|2.10|> stop<|2.60|> end
    timestamps    come in pairs, the end of one segment and the begin of the next; they never decrease

Source: https://github.com/openai/whisper/blob/main/whisper/decoding.py (SuppressBlank, SuppressTokens,
ApplyTimestampRules)
"""

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from jaxtyping import UInt

from service.engine.token_mask import WORD_BITS, exclude
from service.text.speech.tokens import TIMESTAMP_S, SpeechTokens


@dataclass
class TranscriptRules:
    """A `Constraint` of one transcript.

    One rule of OpenAI's is not among these, since it depends on the logits: where all timestamps together are likelier
    than the likeliest text, the next token is a timestamp.
    """

    tokens: SpeechTokens
    has_timestamps: bool
    max_initial_s: float | None = 1.0  # the latest begin of the first segment; None for any
    _sampled: list[int] = field(default_factory=list)

    @property
    def is_free(self) -> bool:
        """Never: some tokens are suppressed throughout."""
        return False

    def copy(self) -> Self:
        """Return the rule of the same transcript, which advances by itself."""
        return replace(self, _sampled=list(self._sampled))

    def forced_tokens(self) -> list[int]:
        """Return none: there is always a choice."""
        return []

    def fill_mask(self, words: UInt[np.ndarray, " word"]) -> None:
        """Write the mask of the tokens that may be sampled next."""
        words.fill(0)
        _allow_range(words, 0, self.tokens.vocab_size)
        exclude(words, self.tokens.suppressed)
        if not self._sampled:
            exclude(words, self.tokens.suppressed_first)
        if self.has_timestamps:
            exclude(words, [self.tokens.no_timestamps])
            self._apply_timestamp_rules(words)

    def accept(self, token_id: int) -> None:
        """Advance by a sampled token."""
        self._sampled.append(token_id)

    def _apply_timestamp_rules(self, words: UInt[np.ndarray, " word"]) -> None:
        tokens, sampled = self.tokens, self._sampled
        first = tokens.first_timestamp
        if not sampled:
            _exclude_range(words, 0, first)
            if self.max_initial_s is not None:
                _exclude_range(words, first + round(self.max_initial_s / TIMESTAMP_S) + 1, tokens.vocab_size)
            return
        is_after_time = tokens.is_timestamp(sampled[-1])
        # A transcript's first timestamp begins a segment, as the second of a pair does.
        is_after_begin = is_after_time and (len(sampled) < 2 or tokens.is_timestamp(sampled[-2]))
        if is_after_begin:
            _exclude_range(words, first, tokens.vocab_size)
        elif is_after_time:
            _exclude_range(words, 0, tokens.end)
        times = [token_id for token_id in sampled if tokens.is_timestamp(token_id)]
        if times:
            # The end of a segment is later than its begin; a begin may be the end of the segment before.
            earliest = times[-1] if is_after_time and not is_after_begin else times[-1] + 1
            _exclude_range(words, first, earliest)


def _allow_range(words: UInt[np.ndarray, " word"], begin: int, end: int) -> None:
    words |= _range_words(len(words), begin, end)


def _exclude_range(words: UInt[np.ndarray, " word"], begin: int, end: int) -> None:
    words &= ~_range_words(len(words), begin, end)


def _range_words(num_words: int, begin: int, end: int) -> UInt[np.ndarray, " word"]:
    """Return the bits of the tokens from `begin` to before `end`."""
    bits = np.zeros(num_words * WORD_BITS, np.uint8)
    bits[begin : max(begin, end)] = 1
    return np.packbits(bits, bitorder="little").view("<u4")
