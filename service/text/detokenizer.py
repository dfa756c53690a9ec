"""Token ids to text as they arrive: whole characters only, cut before the first stop string.

A character may take several tokens, so its text is known only when its last byte has arrived. The concatenated results
of `push` are the text of all tokens; the bytes of a character that is incomplete at the end are dropped.

The first stop string is the one that is complete first, so that no token is generated beyond it; of several that end
at one character, the longest. Text that could still become a stop string is held back.
"""

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
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


class EndCheck(Protocol):
    """Knows where a text may end, such as one that a grammar holds."""

    def advance(self, text: str) -> None:
        """Append text."""
        ...

    def may_end_behind(self, text: str) -> bool:
        """Return whether the whole text may end with this, which is not appended."""
        ...


class StopStrings:
    """Cuts one text at its first stop string, wherever the boundaries of its parts lie, in time linear in the text."""

    def __init__(self, rule: StopRule, end_check: EndCheck | None = None) -> None:
        """Begin a text; a stop string ends it only where `end_check` lets it end."""
        self._stops = rule.strings
        self._keeps_stop = rule.keeps_stop
        self._end_check = end_check
        self._held = ""
        self._failures = [failures(stop) for stop in self._stops]
        self._sizes = [0] * len(self._stops)  # of each stop string's longest prefix that ends the text
        self._begins = re.compile(f"[{re.escape(''.join({stop[0] for stop in self._stops}))}]") if self._stops else None

    def push(self, text: str, *, may_stop: bool = True) -> tuple[str, str | None]:
        """Append text; return what is safe to send, and the stop string that was found.

        Args:
            text: what follows.
            may_stop: whether a stop string that is complete within it ends the text.
        """
        if self._begins is None:
            return text, None
        begin, text = len(self._held), self._held + text
        for end in self._ends(text, begin):
            for size in sorted(self._complete(text[end - 1]), reverse=True):
                cut = end if self._keeps_stop else end - size
                if may_stop and (self._end_check is None or self._end_check.may_end_behind(text[:cut])):
                    self._held = ""
                    return text[:cut], text[end - size : end]
        border = len(text) - max(self._sizes)
        self._held, sent = text[border:], text[:border]
        if self._end_check is not None and sent:
            self._end_check.advance(sent)
        return sent, None

    def flush(self) -> str:
        """Return the text that was held back, at the end of the sequence or of a part of it."""
        held, self._held = self._held, ""
        self._sizes = [0] * len(self._stops)
        return held

    def _ends(self, text: str, position: int) -> Iterator[int]:
        """Yield the ends of the characters that may continue or begin a stop string."""
        assert self._begins is not None, "there are stop strings"
        while position < len(text):
            if not any(self._sizes):
                found = self._begins.search(text, position)
                if found is None:
                    return
                position = found.start()
            position += 1
            yield position

    def _complete(self, character: str) -> list[int]:
        """Append a character; return the lengths of the stop strings that it completes."""
        complete: list[int] = []
        for index, (stop, failure) in enumerate(zip(self._stops, self._failures, strict=True)):
            size = self._sizes[index]
            while size and stop[size] != character:
                size = failure[size - 1]
            size += stop[size] == character
            if size == len(stop):
                complete.append(size)
                size = failure[size - 1]
            self._sizes[index] = size
        return complete


@lru_cache(maxsize=256)
def failures(stop: str) -> tuple[int, ...]:
    """Return, for each prefix of a string, the length of its longest proper suffix that is a prefix too.

    Source: Knuth, Morris, Pratt 1977, "Fast Pattern Matching in Strings".
    """
    sizes = [0]
    for character in stop[1:]:
        size = sizes[-1]
        while size and stop[size] != character:
            size = sizes[size - 1]
        sizes.append(size + (stop[size] == character))
    return tuple(sizes)
