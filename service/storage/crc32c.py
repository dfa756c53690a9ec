"""CRC32C as Google Cloud Storage encodes it, and the checksum of a concatenation from the checksums of its parts.

Threads checksum the slices of an object as they arrive, in any order; `combine` joins the checksums without reading the
bytes again.
Source: RFC 3720 appendix B.4 (the polynomial); https://cloud.google.com/storage/docs/data-validation (the text form).
"""

import base64
from functools import lru_cache
from pathlib import Path
from typing import cast

import google_crc32c
import numpy as np

# The Castagnoli polynomial, bit-reversed: bit 31 is the coefficient of x**0.
POLYNOMIAL = 0x82F63B78
ONE = 1 << 31
CHUNK_BYTES = 4 * 1024 * 1024


def extend(crc: int, data: bytes | np.ndarray) -> int:
    """Continue the checksum `crc` over `data`; the checksum of no bytes is 0."""
    # The library accepts any contiguous buffer, although its annotation says `bytes`.
    return google_crc32c.extend(crc, cast(bytes, data))


def combine(first: int, second: int, second_bytes: int) -> int:
    """Return the checksum of two concatenated byte strings from the checksum of each and the length of the second.

    Appending k bytes multiplies the first checksum by x**(8 k) modulo the polynomial.
    Source: zlib's crc32_combine (crc32.c, multmodp and x2nmodp), with the Castagnoli polynomial.
    """
    return _multiply(_shift(second_bytes), first) ^ second


def to_text(crc: int) -> str:
    """Encode a checksum as base64 of its big-endian bytes."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def of_file(path: Path) -> int:
    """Return the checksum of a file."""
    crc = 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            crc = extend(crc, chunk)
    return crc


def _multiply(left: int, right: int) -> int:
    product, bit = 0, ONE
    while bit:
        if left & bit:
            product ^= right
        bit >>= 1
        right = (right >> 1) ^ (POLYNOMIAL if right & 1 else 0)
    return product


@lru_cache(maxsize=64)
def _shift(num_bytes: int) -> int:
    # x**(8 * num_bytes) by squaring: x**8 is bit 31 - 8.
    result, square = ONE, ONE >> 8
    while num_bytes:
        if num_bytes & 1:
            result = _multiply(result, square)
        square = _multiply(square, square)
        num_bytes >>= 1
    return result
