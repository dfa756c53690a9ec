"""Ranges of an object that are fetched in one request each, and the pieces that are used at once; plain arithmetic."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of an object."""

    start: int
    length: int

    @property
    def end(self) -> int:
        """The byte behind the last."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Slice:
    """What one request asks for: pieces without a gap, each used as soon as it is there."""

    pieces: tuple[Piece, ...]

    @property
    def start(self) -> int:
        """The first byte."""
        return self.pieces[0].start

    @property
    def end(self) -> int:
        """The byte behind the last."""
        return self.pieces[-1].end

    @property
    def length(self) -> int:
        """How many bytes it has."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of an object that may be divided at multiples of a unit only, such as a tensor's elements."""

    length: int
    unit_bytes: int


def cut(start: int, extents: Iterable[Extent], *, piece_bytes: int, slice_bytes: int) -> tuple[Slice, ...]:
    """Divide what lies from `start` on; there is at least one slice, which may be empty.

    Args:
        start: the byte of the object where the first extent begins.
        extents: what lies there, one behind the other.
        piece_bytes: how long a piece may be; longer only where a single unit is.
        slice_bytes: how long a slice may be; longer only where a single piece is.
    """
    slices: list[Slice] = []
    together: list[Piece] = []
    for piece in _pieces(start, extents, min(piece_bytes, slice_bytes)):
        if together and piece.end - together[0].start > slice_bytes:
            slices.append(Slice(tuple(together)))
            together = []
        together.append(piece)
    return (*slices, Slice(tuple(together)))


def _pieces(start: int, extents: Iterable[Extent], piece_bytes: int) -> list[Piece]:
    pieces: list[Piece] = []
    begin = end = start
    for extent in extents:
        left = extent.length
        while left:
            room = (begin + piece_bytes - end) // extent.unit_bytes * extent.unit_bytes
            if room <= 0 and end > begin:
                pieces.append(Piece(begin, end - begin))
                begin = end
                continue
            taken = min(left, max(room, extent.unit_bytes))
            end += taken
            left -= taken
    if end > begin or not pieces:
        pieces.append(Piece(begin, end - begin))
    return pieces
