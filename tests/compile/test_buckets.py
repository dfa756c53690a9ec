import pytest

from service.compile.buckets import BucketGrid, geometric_sizes


def test_sizes_grow_by_the_factor_and_end_with_the_largest():
    assert geometric_sizes(1, 16, factor=4) == (1, 4, 16)
    assert geometric_sizes(1, 20, factor=4) == (1, 4, 16, 20)
    assert geometric_sizes(8, 8, factor=4) == (8,)


GRID = BucketGrid(((1, 16), (1, 64), (4, 16)))


def test_the_bucket_that_fits_with_the_least_padding_is_chosen():
    assert GRID.smallest((1, 5)) == (1, 16)
    assert GRID.smallest((1, 17)) == (1, 64)
    assert GRID.smallest((2, 16)) == (4, 16)
    assert len(list(GRID)) == 3


def test_a_need_that_no_bucket_holds_is_an_error():
    with pytest.raises(ValueError, match=r"no bucket holds \(2, 17\)"):
        GRID.smallest((2, 17))
