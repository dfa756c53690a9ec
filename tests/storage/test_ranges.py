"""Slices and chunks cover an object without dividing a unit."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.storage.objects import Chunk, Extent, Slice, divide

EXTENTS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 9)).map(lambda pair: Extent(pair[0] * pair[1], pair[1])), max_size=12
)


@given(EXTENTS, st.integers(0, 50), st.integers(1, 60), st.integers(1, 200))
def test_every_byte_is_in_one_chunk_and_no_unit_is_divided(extents, start, chunk_bytes, slice_bytes):
    slices = divide(start, extents, chunk_bytes=chunk_bytes, slice_bytes=slice_bytes)
    chunks = [chunk for part in slices for chunk in part.chunks]
    end = start
    allowed = {start}
    for extent in extents:
        allowed |= set(range(end, end + extent.num_bytes + 1, extent.unit_bytes))
        end += extent.num_bytes
    assert chunks[0].start == start
    assert chunks[-1].end == end
    assert all(one.end == other.start for one, other in itertools.pairwise(chunks))
    assert {chunk.end for chunk in chunks} <= allowed
    longest_unit = max((extent.unit_bytes for extent in extents), default=0)
    assert all(chunk.num_bytes <= max(min(chunk_bytes, slice_bytes), longest_unit) for chunk in chunks)
    assert all(len(part.chunks) == 1 or part.num_bytes <= slice_bytes for part in slices)


def test_nothing_is_one_empty_chunk():
    [part] = divide(5, [], chunk_bytes=10, slice_bytes=10)
    assert part.chunks == (Chunk(5, 5),)


def starts(slices: tuple[Slice, ...]) -> list[list[int]]:
    return [[chunk.start for chunk in part.chunks] for part in slices]


@pytest.mark.parametrize(
    ("extents", "chunk_bytes", "slice_bytes", "expected"),
    [
        ([Extent(100, 1)], 30, 60, [[0, 30], [60, 90]]),
        ([Extent(100, 1)], 30, 100, [[0, 30, 60, 90]]),
        ([Extent(100, 1)], 30, 90, [[0, 30, 60], [90]]),
        ([Extent(100, 1)], 30, 89, [[0, 30], [60, 90]]),
        ([Extent(100, 1)], 200, 50, [[0], [50]]),
        ([Extent(40, 8)], 30, 60, [[0, 24]]),
        ([Extent(10, 1), Extent(10, 1)], 30, 60, [[0]]),
        ([Extent(10, 1), Extent(40, 20)], 30, 60, [[0, 30]]),
        ([Extent(15, 1), Extent(40, 20)], 30, 60, [[0, 15, 35]]),
        ([Extent(80, 40)], 30, 60, [[0], [40]]),
        ([Extent(0, 4), Extent(8, 4), Extent(0, 4)], 30, 60, [[0]]),
    ],
)
def test_chunks_and_slices_are_as_large_as_allowed(extents, chunk_bytes, slice_bytes, expected):
    assert starts(divide(0, extents, chunk_bytes=chunk_bytes, slice_bytes=slice_bytes)) == expected
    moved = starts(divide(7, extents, chunk_bytes=chunk_bytes, slice_bytes=slice_bytes))
    assert [[start - 7 for start in part] for part in moved] == expected


def test_a_slice_is_as_long_as_its_chunks():
    part = Slice((Chunk(5, 9), Chunk(9, 20)))
    assert (part.start, part.end, part.num_bytes) == (5, 20, 15)
    assert [chunk.num_bytes for chunk in part.chunks] == [4, 11]
