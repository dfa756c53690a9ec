import pytest

from service.engine.shapes import Bucket, EngineShapes, geometric_sizes


def make_shapes(**changes):
    sizes = {"num_slots": 16, "num_pages": 4096, "page_size": 16, "max_model_len": 4096, "max_prefill_tokens": 512}
    return EngineShapes(**sizes | changes)


def test_sizes_grow_by_the_factor_and_end_with_the_largest():
    assert geometric_sizes(1, 16, factor=4) == (1, 4, 16)
    assert geometric_sizes(1, 20, factor=4) == (1, 4, 16, 20)
    assert geometric_sizes(8, 8, factor=4) == (8,)


def test_the_bucket_that_fits_with_the_least_padding_is_chosen():
    shapes = make_shapes()
    assert shapes.smallest(shapes.buckets, Bucket(1, 0)) == (1, 0)
    assert shapes.smallest(shapes.buckets, Bucket(5, 0)) == (8, 0)
    assert shapes.smallest(shapes.buckets, Bucket(0, 1)) == (16, 1)
    assert shapes.smallest(shapes.buckets, Bucket(9, 5)) == (16, 8)


def test_a_need_that_no_bucket_holds_is_an_error():
    shapes = make_shapes()
    with pytest.raises(ValueError, match=r"no bucket holds .*num_rows=9"):
        shapes.smallest(shapes.buckets, Bucket(2, 9))


def test_sizes_lie_close_where_padding_costs_and_far_apart_where_it_does_not():
    assert make_shapes(max_prefill_tokens=2048).row_counts == (1, 4, 16, 32)
    assert make_shapes().slot_counts == (1, 4, 8, 16)
    cheap = make_shapes(skips_padding=True)
    assert (cheap.row_counts, cheap.slot_counts) == ((1, 8), (1, 16))


def test_no_step_has_more_rows_than_all_slots_can_fill():
    assert make_shapes(num_slots=2, max_model_len=64).row_counts == (1, 2)
    assert make_shapes(num_slots=1, max_model_len=48).row_counts == (1,)


def test_beside_prompts_every_slot_may_decode():
    assert {bucket.num_seqs for bucket in make_shapes().prompt_buckets} == {16}
