"""Single tokens of a mask over the next token: bit `t % 32` of word `t // 32` for token `t`."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import UInt

WORD_BITS = 32


def allow(words: UInt[np.ndarray, " word"], token_ids: Iterable[int]) -> None:
    """Allow tokens, in place."""
    for token_id in token_ids:
        words[token_id // WORD_BITS] |= np.uint32(1 << token_id % WORD_BITS)


def exclude(words: UInt[np.ndarray, " word"], token_ids: Iterable[int]) -> None:
    """Exclude tokens, in place."""
    for token_id in token_ids:
        words[token_id // WORD_BITS] &= ~np.uint32(1 << token_id % WORD_BITS)
