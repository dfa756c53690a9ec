"""Samples of sound as a worker process writes them: a fixed header, and signed 16-bit integers in little endian."""

import struct
from typing import Any

import numpy as np

SAMPLING_RATE = 16_000
SAMPLE_BYTES = 2
HEADER = struct.Struct("<4sIQ")  # magic, samples a second, samples
MAGIC = b"PCM1"

type Samples = np.ndarray[tuple[int], np.dtype[np.int16]]


def header(num_samples: int) -> bytes:
    """Return the header of so many samples."""
    return HEADER.pack(MAGIC, SAMPLING_RATE, num_samples)


def read_samples(answer: bytes | bytearray) -> Samples:
    """Return the samples of an answer, which share its memory.

    Raises:
        ValueError: the answer is not as `header` begins it, so whoever wrote it is not our code any more.
    """
    if len(answer) < HEADER.size:
        raise ValueError("the answer is shorter than its header")
    magic, rate, num_samples = HEADER.unpack_from(answer)
    if (magic, rate) != (MAGIC, SAMPLING_RATE) or num_samples * SAMPLE_BYTES != len(answer) - HEADER.size:
        raise ValueError("the answer's header is not that of its samples")
    samples: Any = np.frombuffer(answer, "<i2", offset=HEADER.size)
    return samples
