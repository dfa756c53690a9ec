"""Byte ranges of an object: the interface that reads one, and the arithmetic that divides an object into them."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from service.storage.objects import ObjectInfo
from service.storage.retry import RetryBudget


@runtime_checkable
class RangeReader(Protocol):
    """An open range, read once from its beginning to its end by one thread."""

    def readinto(self, buffer: memoryview) -> None:
        """Fill the buffer with the next bytes of the range.

        Raises:
            ObjectChanged: the object was overwritten or deleted since it was listed.
            TransferFailed: retries or deadline ran out, or the transfer was cancelled.
        """
        ...


@runtime_checkable
class RangeSource(Protocol):
    """A place whose objects can be read by range, by several threads at once."""

    uri: str

    def open_range(
        self, info: ObjectInfo, start: int, num_bytes: int, budget: RetryBudget
    ) -> AbstractContextManager[RangeReader]:
        """Open `num_bytes` bytes of an object from byte `start`; a source may request all of them at the first read."""
        ...


def read_range(source: RangeSource, info: ObjectInfo, start: int, num_bytes: int, budget: RetryBudget) -> bytes:
    """Read a short range into memory; see `RangeReader.readinto` for what it raises."""
    data = bytearray(num_bytes)
    with source.open_range(info, start, num_bytes, budget) as reader:
        reader.readinto(memoryview(data))
    return bytes(data)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes that are read, summed and used at once, while they are in the processor's cache."""

    start: int  # byte of the object
    end: int  # the byte after the last

    @property
    def num_bytes(self) -> int:
        """The chunk's length."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Slice:
    """The bytes of one request: chunks without a gap."""

    chunks: tuple[Chunk, ...]

    @property
    def start(self) -> int:
        """The first byte of the object."""
        return self.chunks[0].start

    @property
    def end(self) -> int:
        """The byte after the last."""
        return self.chunks[-1].end

    @property
    def num_bytes(self) -> int:
        """The slice's length."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of an object that may be divided only at multiples of a unit, such as one element of a tensor."""

    num_bytes: int
    unit_bytes: int


def divide(start: int, extents: Iterable[Extent], *, chunk_bytes: int, slice_bytes: int) -> tuple[Slice, ...]:
    """Divide adjacent extents into slices of chunks; return at least one slice, which may be empty.

    Args:
        start: the byte of the object where the first extent begins.
        extents: in the order in which they are stored.
        chunk_bytes: the longest chunk; only a single unit may be longer.
        slice_bytes: the longest slice; only a single chunk may be longer.
    """
    slices: list[Slice] = []
    together: list[Chunk] = []
    for chunk in _chunks(start, extents, min(chunk_bytes, slice_bytes)):
        if together and chunk.end - together[0].start > slice_bytes:
            slices.append(Slice(tuple(together)))
            together = []
        together.append(chunk)
    return (*slices, Slice(tuple(together)))


def _chunks(start: int, extents: Iterable[Extent], chunk_bytes: int) -> list[Chunk]:
    chunks: list[Chunk] = []
    begin = end = start
    for extent in extents:
        left = extent.num_bytes
        while left:
            room = (begin + chunk_bytes - end) // extent.unit_bytes * extent.unit_bytes
            if room <= 0 and end > begin:
                chunks.append(Chunk(begin, end))
                begin = end
                continue
            taken = min(left, max(room, extent.unit_bytes))
            end += taken
            left -= taken
    if end > begin or not chunks:
        chunks.append(Chunk(begin, end))
    return chunks
