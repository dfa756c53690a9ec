"""Which tokens may come next, as one bit a token: how it travels from a request to the sampler."""

from collections.abc import Collection

import numpy as np
from jaxtyping import UInt

WORD_BITS = 32
ALL_ALLOWED = np.uint32(0xFFFF_FFFF)  # a word without a restriction


def words_allowing(token_ids: Collection[int]) -> UInt[np.ndarray, " word"]:
    """Return words, the lowest bit first, up to the last token that may come; none after it may."""
    bits = np.zeros((max(token_ids) // WORD_BITS + 1) * WORD_BITS, np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view("<u4")
