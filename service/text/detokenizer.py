"""Token ids to text as they come: whole characters only.

A character may take several tokens, so the text of a token is known only when its last byte is there. Concatenated,
what `push` returns is the text of all tokens; the bytes of a character that is incomplete at the end are dropped.
"""

import codecs
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from service.text.token_bytes import BYTE_TOKEN, TokenBytes
from service.text.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A UTF-8 character has at most 4 bytes and a token at least one, so older context cannot matter.
CONTEXT_TOKENS = 4
# What a decoder that is known only from outside may look back on.
WINDOW_TOKENS = 8


@runtime_checkable
class Detokenizer(Protocol):
    """Turns one sequence's tokens into text, in constant time for each token."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next tokens and return the characters that they complete; special tokens are no text."""
        ...


def detokenizer_for(tokenizer: Tokenizer, context_ids: Sequence[int] = ()) -> Detokenizer:
    """Return a detokenizer for one sequence.

    Args:
        tokenizer: whose tokens they are.
        context_ids: the prompt that the tokens continue. A text's first space may be left out, a continuation's not.
    """
    context = [token_id for token_id in context_ids[-WINDOW_TOKENS:] if token_id not in tokenizer.special_ids]
    if tokenizer.token_bytes is not None:
        return ByteDetokenizer(tokenizer.token_bytes, context[-CONTEXT_TOKENS:])
    return WindowDetokenizer(tokenizer, context)


class ByteDetokenizer:
    """Joins the bytes of tokens, for the decoders where a token has bytes of its own."""

    def __init__(self, token_bytes: TokenBytes, context_ids: Sequence[int]) -> None:
        self._token_bytes = token_bytes
        # A sequence that can become no character is replaced as Rust's from_utf8_lossy does.
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._spaces_to_strip = token_bytes.num_leading_spaces_stripped
        self.push(context_ids)
        if context_ids:
            self._spaces_to_strip = 0

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next tokens and return the characters that they complete."""
        text = self._utf8.decode(b"".join(self._token_bytes[token_id] for token_id in token_ids))
        while self._spaces_to_strip and text:
            if not text.startswith(" "):
                self._spaces_to_strip = 0
                break
            text = text[1:]
            self._spaces_to_strip -= 1
        return text


class WindowDetokenizer:
    """Decodes the last few tokens with and without the new ones; what the new ones add is their text."""

    def __init__(self, tokenizer: Tokenizer, context_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._window = list(context_ids)
        self._num_chars_sent = len(tokenizer.decode(self._window))

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next tokens and return the characters that they complete."""
        self._window += [token_id for token_id in token_ids if token_id not in self._tokenizer.special_ids]
        text = self._tokenizer.decode(self._window)
        if text.endswith(REPLACEMENT) and self._is_byte(-1):
            return ""
        completed = text[self._num_chars_sent :]
        start = max(0, len(self._window) - WINDOW_TOKENS)
        while start and self._is_byte(start):  # a run of byte tokens is decoded as one
            start -= 1
        self._window = self._window[start:]
        self._num_chars_sent = len(self._tokenizer.decode(self._window))
        return completed

    def _is_byte(self, position: int) -> bool:
        token = self._tokenizer.backend.id_to_token(self._window[position])
        return token is not None and BYTE_TOKEN.fullmatch(token) is not None
