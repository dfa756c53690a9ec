"""Token masks: the tokens that may be sampled next, as one bit per token, the lowest bit of a word first."""

from collections.abc import Collection

import numpy as np
from jaxtyping import UInt

WORD_BITS = 32
ALL_ALLOWED = np.uint32(0xFFFF_FFFF)  # a word without a restriction


def pack_token_mask(token_ids: Collection[int]) -> UInt[np.ndarray, " word"]:
    """Return a mask that allows these tokens alone, as far as the word of the largest of them."""
    bits = np.zeros((max(token_ids) // WORD_BITS + 1) * WORD_BITS, np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view("<u4")
