"""Slices and pieces cover what they are cut from, between units only."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from service.storage.slices import Extent, Piece, cut

EXTENTS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 9)).map(lambda pair: Extent(pair[0] * pair[1], pair[1])), max_size=12
)


@given(EXTENTS, st.integers(0, 50), st.integers(1, 60), st.integers(1, 200))
def test_every_byte_is_in_one_piece_and_no_unit_is_divided(extents, start, piece_bytes, slice_bytes):
    slices = cut(start, extents, piece_bytes=piece_bytes, slice_bytes=slice_bytes)
    pieces = [piece for part in slices for piece in part.pieces]
    end = start
    allowed = {start}
    for extent in extents:
        allowed |= set(range(end, end + extent.length + 1, extent.unit_bytes))
        end += extent.length
    assert pieces[0].start == start
    assert pieces[-1].end == end
    assert all(one.end == other.start for one, other in itertools.pairwise(pieces))
    assert {piece.end for piece in pieces} <= allowed
    longest_unit = max((extent.unit_bytes for extent in extents), default=0)
    assert all(piece.length <= max(min(piece_bytes, slice_bytes), longest_unit) for piece in pieces)
    assert all(len(part.pieces) == 1 or part.length <= slice_bytes for part in slices)


def test_nothing_is_one_empty_piece():
    [part] = cut(5, [], piece_bytes=10, slice_bytes=10)
    assert part.pieces == (Piece(5, 0),)
