"""Pixels of images as a worker process writes them, in little endian, and what the process is asked for.

header    magic, width and height of the image as it is shown, how many pictures follow
pictures  red, green and blue of each pixel, row by row, as unsigned 8-bit integers
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

HEADER = struct.Struct("<4sIII")
MAGIC = b"RGB1"
CHANNELS = 3

type Picture = np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]  # [row, column, channel]


class Size(NamedTuple):
    """The size of an image in pixels, as it is shown."""

    width: int
    height: int

    @property
    def num_bytes(self) -> int:
        """The bytes of its pixels."""
        return self.width * self.height * CHANNELS


class Filter(IntEnum):
    """How pixels are resampled, by Pillow's numbers."""

    LANCZOS = 1
    BILINEAR = 2
    BICUBIC = 3


class Resize(NamedTuple):
    """One of the sizes that an image is brought to, each made of the one before."""

    size: Size
    is_wanted: bool = True  # whether it is a picture of the answer, and not only a step towards one


class Shown(NamedTuple):
    """A part of an image as an encoder takes it."""

    features: Any  # arrays
    num_rows: int  # tokens whose places it takes
    grid: tuple[int, int] | None = None  # rows by row and column, if positions have both


def header(size: Size, num_pictures: int) -> bytes:
    """Return the header for a number of pictures of an image."""
    return HEADER.pack(MAGIC, *size, num_pictures)


def read_size(answer: bytes | bytearray) -> Size:
    """Return the size of an image, of an answer without pictures.

    Raises:
        ValueError: the answer is not as `header` writes it, so whoever wrote it is not our code any more.
    """
    size, _ = _read(answer, 0, HEADER.size)
    return size


def read_pictures(answer: bytes | bytearray, resizes: Sequence[Resize]) -> list[Picture]:
    """Return the pictures of an answer, which share its memory and cannot be written to.

    Args:
        answer: what the process has written.
        resizes: what it was asked for.

    Raises:
        ValueError: the answer is not what was asked for, so whoever wrote it is not our code any more.
    """
    sizes = [resize.size for resize in resizes if resize.is_wanted]
    _read(answer, len(sizes), HEADER.size + sum(size.num_bytes for size in sizes))
    pictures: list[Picture] = []
    offset = HEADER.size
    for size in sizes:
        pixels: Any = np.frombuffer(answer, np.uint8, size.num_bytes, offset)
        pixels.flags.writeable = False
        pictures.append(pixels.reshape(size.height, size.width, CHANNELS))
        offset += size.num_bytes
    return pictures


def _read(answer: bytes | bytearray, num_pictures: int, num_bytes: int) -> tuple[Size, int]:
    if len(answer) != num_bytes:
        raise ValueError("the answer has not the length that its header must promise")
    magic, width, height, found = HEADER.unpack_from(answer)
    if magic != MAGIC or found != num_pictures or not width or not height:
        raise ValueError("the answer's header is not that of its pictures")
    return Size(width, height), found
