"""Samples of sound as a worker process writes them, in little endian.

header    magic, samples a second, how many samples, how many spans of speech; NO_SPANS if none were looked for
samples   signed 16-bit integers
spans     begin and end of each, in samples, as unsigned 64-bit integers
"""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

SAMPLING_RATE = 16_000
SAMPLE_BYTES = 2
HEADER = struct.Struct("<4sIQQ")
MAGIC = b"PCM2"
NO_SPANS = 2**64 - 1
SPAN_BYTES = 16

type Samples = np.ndarray[tuple[int], np.dtype[np.int16]]


class SampleSpan(NamedTuple):
    """A part of the samples in which somebody speaks."""

    begin: int
    end: int


class Sound(NamedTuple):
    """What a file is decoded to."""

    samples: Samples
    speech: tuple[SampleSpan, ...] | None  # None: it was not looked for


def header(num_samples: int, num_spans: int | None) -> bytes:
    """Return the header for a number of samples and spans."""
    return HEADER.pack(MAGIC, SAMPLING_RATE, num_samples, NO_SPANS if num_spans is None else num_spans)


def span_bytes(spans: Sequence[SampleSpan]) -> bytes:
    """Return spans as they come after the samples."""
    return np.array(spans, "<u8").tobytes()


def read_sound(answer: bytes | bytearray) -> Sound:
    """Return the sound of an answer, whose samples share its memory.

    Raises:
        ValueError: the answer is not as `header` begins it, so whoever wrote it is not our code any more.
    """
    if len(answer) < HEADER.size:
        raise ValueError("the answer is shorter than its header")
    magic, rate, num_samples, num_spans = HEADER.unpack_from(answer)
    has_spans = num_spans != NO_SPANS
    size = num_samples * SAMPLE_BYTES + (num_spans * SPAN_BYTES if has_spans else 0)
    if (magic, rate) != (MAGIC, SAMPLING_RATE) or size != len(answer) - HEADER.size:
        raise ValueError("the answer's header is not that of its samples")
    samples: Any = np.frombuffer(answer, "<i2", num_samples, HEADER.size)
    if not has_spans:
        return Sound(samples, None)
    edges = np.frombuffer(answer, "<u8", 2 * num_spans, HEADER.size + num_samples * SAMPLE_BYTES)
    if (np.diff(edges.astype(np.float64)) < 0).any() or (edges > num_samples).any():
        raise ValueError("the answer's spans are not in order, or not in its samples")
    return Sound(samples, tuple(SampleSpan(int(begin), int(end)) for begin, end in edges.reshape(-1, 2)))
