import pytest

from service.engine.shapes import Bucket, BucketGrid, EngineShapes, geometric_sizes


def test_sizes_grow_by_the_factor_and_end_with_the_largest():
    assert geometric_sizes(1, 16, factor=4) == (1, 4, 16)
    assert geometric_sizes(1, 20, factor=4) == (1, 4, 16, 20)
    assert geometric_sizes(8, 8, factor=4) == (8,)


GRID = BucketGrid((Bucket(1, 16), Bucket(1, 64), Bucket(4, 16)))


def test_the_bucket_that_fits_with_the_least_padding_is_chosen():
    assert GRID.smallest(Bucket(1, 5)) == (1, 16)
    assert GRID.smallest(Bucket(1, 17)) == (1, 64)
    assert GRID.smallest(Bucket(2, 16)) == (4, 16)
    assert len(list(GRID)) == 3


def test_a_need_that_no_bucket_holds_is_an_error():
    with pytest.raises(ValueError, match=r"no bucket holds .*num_tokens=17"):
        GRID.smallest(Bucket(2, 17))


def test_prompts_share_no_step_where_a_shorter_chunk_fills_the_context():
    shapes = EngineShapes(
        num_slots=4,
        num_pages=16,
        page_size=16,
        max_model_len=64,
        max_prefill_tokens=512,
        prefill_seqs=(1, 4),
        prefill_step_cost_tokens=40,
    )
    assert shapes.prefill.num_seqs == (1,)
    assert {bucket.num_seqs for bucket in shapes.prefill_grid} == {1}
