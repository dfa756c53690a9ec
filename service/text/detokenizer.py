"""Token ids to text as they arrive: whole characters only, cut before the first stop string.

A character may take several tokens, so its text is known only when its last byte has arrived. The concatenated results
of `push` are the text of all tokens; the bytes of a character that is incomplete at the end are dropped.

The first stop string is the one that is complete first, so that no token is generated beyond it; of several that end
at one character, the longest. Text that could still become a stop string is held back.
"""

import codecs
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from service.text.tokenizer import BYTE_TOKEN, TokenBytes, Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A UTF-8 character has at most 4 bytes and a token at least one, so older tokens cannot share a character.
CONTEXT_TOKENS = 4
# Tokens of context for a decoder whose internals are unknown.
WINDOW_TOKENS = 8


@runtime_checkable
class Detokenizer(Protocol):
    """Converts one sequence's tokens to text incrementally, in constant time for each token."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Append tokens and return the characters that they complete; special tokens have no text."""
        ...


def detokenizer_for(
    tokenizer: Tokenizer, context_ids: Sequence[int] = (), shown_ids: Set[int] = frozenset()
) -> Detokenizer:
    """Return a detokenizer for one sequence.

    Args:
        tokenizer: the tokenizer of the model.
        context_ids: the prompt that the tokens continue. Decoders may strip the first space of a text, but not that of
            a continuation.
        shown_ids: special tokens that have their names as text, if tokens have bytes of their own.
    """
    context = [token_id for token_id in context_ids[-WINDOW_TOKENS:] if token_id not in tokenizer.special_ids]
    if tokenizer.token_bytes is None:
        return WindowDetokenizer(tokenizer, context)
    detokenizer = ByteDetokenizer(tokenizer.token_bytes, context[-CONTEXT_TOKENS:])
    if shown_ids:
        detokenizer.show({token_id: tokenizer.token_bytes_of(token_id) for token_id in shown_ids})
    return detokenizer


class ByteDetokenizer:
    """Concatenates the bytes of tokens, for the decoders in which each token has bytes of its own."""

    def __init__(self, token_bytes: TokenBytes, context_ids: Sequence[int]) -> None:
        self._token_bytes = token_bytes
        self._shown: Mapping[int, bytes] = MappingProxyType({})
        # Invalid bytes are replaced as by Rust's from_utf8_lossy.
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._spaces_to_strip = token_bytes.num_leading_spaces_stripped
        self.push(context_ids)
        if context_ids:
            self._spaces_to_strip = 0

    def show(self, special: Mapping[int, bytes]) -> None:
        """Give special tokens, which have no text otherwise, these bytes from now on."""
        self._shown = special

    def push(self, token_ids: Sequence[int]) -> str:
        """Append tokens and return the characters that they complete."""
        content = b"".join(self._shown.get(token_id) or self._token_bytes[token_id] for token_id in token_ids)
        text = self._utf8.decode(content)
        while self._spaces_to_strip and text:
            if not text.startswith(" "):
                self._spaces_to_strip = 0
                break
            text = text[1:]
            self._spaces_to_strip -= 1
        return text


class WindowDetokenizer:
    """Decodes the last few tokens with and without the new ones; the difference is the text of the new ones.

    For decoders that are not of the two known families.
    """

    def __init__(self, tokenizer: Tokenizer, context_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._window = list(context_ids)
        self._num_chars_returned = len(tokenizer.decode(self._window))

    def push(self, token_ids: Sequence[int]) -> str:
        """Append tokens and return the characters that they complete."""
        self._window += [token_id for token_id in token_ids if token_id not in self._tokenizer.special_ids]
        text = self._tokenizer.decode(self._window)
        if text.endswith(REPLACEMENT) and self._is_byte(-1):
            return ""
        completed = text[self._num_chars_returned :]
        start = max(0, len(self._window) - WINDOW_TOKENS)
        while start and self._is_byte(start):  # a run of byte tokens is decoded as one
            start -= 1
        self._window = self._window[start:]
        self._num_chars_returned = len(self._tokenizer.decode(self._window))
        return completed

    def _is_byte(self, position: int) -> bool:
        token = self._tokenizer.backend.id_to_token(self._window[position])
        return token is not None and BYTE_TOKEN.fullmatch(token) is not None


@dataclass(frozen=True, slots=True)
class StopRule:
    """What ends a text besides the model itself."""

    strings: tuple[str, ...]  # each with at least one character
    keeps_stop: bool = False  # whether the text ends after the stop string that ended it, rather than before
    token_ids: frozenset[int] = frozenset()


class StopStrings:
    """Cuts one text at its first stop string, wherever the boundaries of its parts lie."""

    def __init__(self, rule: StopRule) -> None:
        self._stops = rule.strings
        self._keeps_stop = rule.keeps_stop
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Append text; return what is safe to send, and the stop string that was found."""
        if not self._stops:
            return text, None
        text = self._held + text
        matches = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if matches:
            self._held = ""
            end, start = min(matches)
            return text[: end if self._keeps_stop else start], text[start:end]
        border = min(self._first_possible_start(text, stop) for stop in self._stops)
        self._held = text[border:]
        return text[:border], None

    def flush(self) -> str:
        """Return the text that was held back, at the end of the sequence."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _first_possible_start(text: str, stop: str) -> int:
        """Return the start of the longest suffix of `text` that is a prefix of `stop`; `len(text)` if none is."""
        start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
        while start >= 0 and not stop.startswith(text[start:]):
            start = text.find(stop[0], start + 1)
        return len(text) if start < 0 else start
