"""Integers of 4 or 8 bits in words of 32."""

import numpy as np
from jaxtyping import Int32, UInt8

# The column of a word's eight that each 4 bits hold, from the lowest on.
# Source: https://github.com/casper-hansen/AutoAWQ/blob/main/awq/modules/linear/gemm.py (order_map)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def unpack(words: Int32[np.ndarray, "row word"], bits: int) -> UInt8[np.ndarray, "row value"]:
    """Return the unsigned integers of each row, those in a word's lowest bits first; `bits` is 4 or 8."""
    octets = np.ascontiguousarray(words).astype("<i4", copy=False).view(np.uint8)
    if bits == 8:
        return octets
    values = np.empty((octets.shape[0], octets.shape[1], 2), np.uint8)
    np.bitwise_and(octets, 0x0F, out=values[:, :, 0])
    np.right_shift(octets, 4, out=values[:, :, 1])
    return values.reshape(octets.shape[0], -1)


def unpack_awq(words: Int32[np.ndarray, "row word"]) -> UInt8[np.ndarray, "row value"]:
    """Return the unsigned 4-bit integers of each row, in the order of AWQ."""
    interleaved = unpack(words, 4).reshape(len(words), -1, len(AWQ_ORDER))
    return interleaved[:, :, np.argsort(AWQ_ORDER)].reshape(len(words), -1)
