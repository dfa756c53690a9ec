"""Token masks: which tokens may be sampled next, as bit `t % 32` of word `t // 32` for token `t`."""

from collections.abc import Collection, Iterable

import numpy as np
from jaxtyping import UInt

WORD_BITS = 32
ALL_ALLOWED = np.uint32(0xFFFF_FFFF)  # a word without a restriction


def pack_token_mask(token_ids: Collection[int]) -> UInt[np.ndarray, " word"]:
    """Return a mask that allows only these tokens, as far as the word of the largest of them."""
    bits = np.zeros((max(token_ids) // WORD_BITS + 1) * WORD_BITS, np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view("<u4")


def bits_by_word(token_ids: Iterable[int]) -> dict[int, int]:
    """Return the bits of a few tokens by the words that hold them."""
    words: dict[int, int] = {}
    for token_id in token_ids:
        word, bit = divmod(token_id, WORD_BITS)
        words[word] = words.get(word, 0) | 1 << bit
    return words


def is_allowed(words: UInt[np.ndarray, " word"], token_id: int) -> bool:
    """Return whether a mask of all tokens allows one."""
    word, bit = divmod(token_id, WORD_BITS)
    return bool(int(words[word]) >> bit & 1)


def allow(words: UInt[np.ndarray, " word"], token_ids: Iterable[int]) -> None:
    """Allow a few tokens, in place."""
    for word, bits in bits_by_word(token_ids).items():
        words[word] |= np.uint32(bits)


def exclude(words: UInt[np.ndarray, " word"], token_ids: Iterable[int]) -> None:
    """Exclude a few tokens, in place."""
    for word, bits in bits_by_word(token_ids).items():
        words[word] &= ~np.uint32(bits)
