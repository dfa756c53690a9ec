import pytest

from service.compile.buckets import BucketGrid, bucket_name, geometric_sizes


def test_sizes_grow_by_the_factor_and_end_with_the_largest():
    assert geometric_sizes(1, 16, factor=4) == (1, 4, 16)
    assert geometric_sizes(1, 20, factor=4) == (1, 4, 16, 20)
    assert geometric_sizes(8, 8, factor=4) == (8,)


GRID = BucketGrid(tuple({"num_seqs": seqs, "num_tokens": tokens} for seqs, tokens in ((1, 16), (1, 64), (4, 16))))


def test_the_bucket_that_fits_with_the_least_padding_is_chosen():
    assert GRID.smallest(num_seqs=1, num_tokens=5) == {"num_seqs": 1, "num_tokens": 16}
    assert GRID.smallest(num_seqs=1, num_tokens=17) == {"num_seqs": 1, "num_tokens": 64}
    assert GRID.smallest(num_seqs=2, num_tokens=16) == {"num_seqs": 4, "num_tokens": 16}
    assert len(list(GRID)) == 3


def test_a_need_that_no_bucket_holds_is_an_error():
    with pytest.raises(ValueError, match=r"no bucket holds .*'num_seqs': 2, 'num_tokens': 17"):
        GRID.smallest(num_seqs=2, num_tokens=17)


def test_a_bucket_is_named_by_its_sizes():
    assert bucket_name("decode", {"num_seqs": 4, "num_pages": 32}) == "decode-seqs4-pages32"
