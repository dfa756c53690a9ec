"""Slices and chunks cover an object without dividing a unit."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from service.storage.ranges import Chunk, Extent, divide

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
