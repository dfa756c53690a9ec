"""Unpacking of 4-bit and 8-bit integers from 32-bit words."""

import numpy as np
from jaxtyping import Int32, UInt8

# The column, out of a word's eight, of each 4-bit value from the lowest bits up.
# Source: https://github.com/casper-hansen/AutoAWQ/blob/main/awq/modules/linear/gemm.py (order_map)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def unpack(words: Int32[np.ndarray, "row word"], bits: int) -> UInt8[np.ndarray, "row value"]:
    """Return the unsigned integers of each row, a word's lowest bits first; `bits` is 4 or 8."""
    data = np.ascontiguousarray(words).astype("<i4", copy=False).view(np.uint8)
    if bits == 8:
        return data
    values = np.empty((data.shape[0], data.shape[1], 2), np.uint8)
    np.bitwise_and(data, 0x0F, out=values[:, :, 0])
    np.right_shift(data, 4, out=values[:, :, 1])
    return values.reshape(data.shape[0], -1)


def unpack_awq(words: Int32[np.ndarray, "row word"]) -> UInt8[np.ndarray, "row value"]:
    """Return the unsigned 4-bit integers of each row, reordered from AWQ's interleaving."""
    interleaved = unpack(words, 4).reshape(len(words), -1, len(AWQ_ORDER))
    return interleaved[:, :, np.argsort(AWQ_ORDER)].reshape(len(words), -1)
