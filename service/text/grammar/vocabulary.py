"""A tokenizer's tokens as the grammar library reads them: their bytes, and the marks of special ones."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from service.errors import InvalidParameter
from service.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# The thread that runs steps waits 5 ms for another one that computes, and this computation takes 0.2 ms for these.
TOKENS_BETWEEN_PAUSES = 128


def grammar_vocabulary(tokenizer: Tokenizer, vocab_size: int, end_ids: Sequence[int]) -> "LLTokenizer":
    """Return the library's tables for a vocabulary, in about half a second for a large one.

    Other threads get the GIL all the time, except in the library's two calls, which take half of it.

    Args:
        tokenizer: one whose tokens have bytes of their own (`token_bytes`).
        vocab_size: number of rows of the model's embedding; ids without a token are never allowed.
        end_ids: tokens that end a text, at least one.
    """
    from llguidance import LLTokenizer

    wrapped: Any = _Vocabulary(tokenizer, vocab_size, end_ids)
    # In two calls, between which other threads get the GIL.
    tables = LLTokenizer(wrapped, eos_token=list(end_ids), slices=[])
    return tables.with_slices(LLTokenizer.general_slices())


class _Vocabulary:
    """The attributes that the library reads, and its way to tokenize what a grammar forces."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        # The library adds its mark of a special token, which no text matches.
        self.tokens: list[bytes] = []
        for token_id in range(vocab_size):
            if token_id % TOKENS_BETWEEN_PAUSES == 0:
                time.sleep(0)
            self.tokens.append(tokenizer.token_bytes_of(token_id))
        self.special_token_ids = sorted(token_id for token_id in tokenizer.special_ids if token_id < vocab_size)
        self.eos_token_id = min(end_ids)
        self._ids_of_bytes = {content: token_id for token_id, content in enumerate(self.tokens) if len(content) == 1}

    def __call__(self, text: str) -> list[int]:
        """Return tokens whose bytes are exactly the text's: the tokenizer's own unless it adds or drops characters."""
        content = text.encode()
        try:
            ids = self._tokenizer.encode(text, add_special_tokens=False)
        except InvalidParameter:  # a token of it is none of the model's
            return self._bytewise(content)
        encoded = b"".join(self.tokens[token_id] for token_id in ids)
        if encoded == content:
            return ids
        if encoded == b" " + content:  # SentencePiece begins a text with a space
            return self._bytewise(self.tokens[ids[0]][1:]) + ids[1:]
        return self._bytewise(content)

    def _bytewise(self, content: bytes) -> list[int]:
        return [self._ids_of_bytes[content[i : i + 1]] for i in range(len(content))]
