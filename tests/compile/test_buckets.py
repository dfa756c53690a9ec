import pytest

from service.compile.buckets import BucketGrid, bucket_name, geometric_sizes


def test_sizes_grow_by_the_factor_and_end_with_the_largest():
    assert geometric_sizes(1, 16, factor=4) == (1, 4, 16)
    assert geometric_sizes(1, 20, factor=4) == (1, 4, 16, 20)
    assert geometric_sizes(8, 8, factor=4) == (8,)


def test_the_smallest_bucket_that_fits_is_chosen():
    grid = BucketGrid({"num_seqs": (1, 4), "num_pages": (8, 32)})
    assert grid.smallest(num_seqs=2, num_pages=8) == {"num_seqs": 4, "num_pages": 8}
    assert grid.smallest(num_seqs=1, num_pages=9) == {"num_seqs": 1, "num_pages": 32}
    assert len(list(grid)) == 4


def test_a_need_over_the_largest_bucket_is_an_error():
    with pytest.raises(ValueError, match="num_seqs = 5 is over the largest bucket, 4"):
        BucketGrid({"num_seqs": (1, 4)}).smallest(num_seqs=5)


def test_a_bucket_is_named_by_its_sizes():
    assert bucket_name("decode", {"num_seqs": 4, "num_pages": 32}) == "decode-seqs4-pages32"
