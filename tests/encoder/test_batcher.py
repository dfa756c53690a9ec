"""The choice of the texts that share a step."""

import random

import pytest

from service.encoder.batcher import Batcher
from service.encoder.request import EncodeRequest
from service.encoder.shapes import EncoderShapes, num_texts

SHAPES = EncoderShapes(max_model_len=100, max_step_tokens=64)


def request(name, *lengths):
    return EncodeRequest(name, tuple((1,) * length for length in lengths))


def plans(batcher, buckets=SHAPES.buckets):
    while (plan := batcher.plan(buckets)) is not None:
        yield plan


def names(plan):
    return [text.request.id for text in plan.texts]


def test_buckets_double_up_to_the_longest_text():
    assert SHAPES.buckets == (16, 32, 64, 100)
    assert EncoderShapes(max_model_len=10, max_step_tokens=16).buckets == (16,)
    assert EncoderShapes(max_model_len=1000, max_step_tokens=1000).buckets[-2:] == (512, 1000)


def test_the_bucket_of_the_longest_text_can_be_cut_into_equal_blocks():
    assert EncoderShapes(max_model_len=8000, max_step_tokens=512).buckets[-2:] == (4096, 8064)


def test_texts_share_the_smallest_step_that_holds_them():
    batcher = Batcher(SHAPES)
    batcher.add(request("a", 5, 6))
    batcher.add(request("b", 20))
    [plan] = plans(batcher)
    assert (plan.bucket, plan.num_tokens, sorted(names(plan))) == (32, 31, ["a", "a", "b"])
    assert batcher.num_tokens == 0


def test_a_text_longer_than_a_shared_step_has_one_of_its_own_size():
    batcher = Batcher(SHAPES)
    batcher.add(request("a", 90, 8))
    assert [(plan.bucket, plan.num_tokens) for plan in plans(batcher)] == [(100, 98)]


def test_a_request_of_thousands_of_texts_delays_a_request_of_one_by_at_most_a_step():
    batcher = Batcher(SHAPES)
    batcher.add(request("crowd", *[30] * 2048))
    batcher.plan(SHAPES.buckets)
    batcher.add(request("one", 12))
    first, second = batcher.plan(SHAPES.buckets), batcher.plan(SHAPES.buckets)
    assert "one" in names(first) + names(second)


def test_a_long_text_is_not_passed_over_for_ever():
    batcher = Batcher(SHAPES)
    batcher.add(request("long", 64))
    for number in range(20):
        batcher.add(request(f"short {number}", *[10] * 20))
    assert "long" in names(batcher.plan(SHAPES.buckets))


def test_many_short_texts_fill_the_places_of_a_step():
    batcher = Batcher(SHAPES)
    batcher.add(request("a", *[1] * 40))
    assert [(plan.bucket, len(plan.texts)) for plan in plans(batcher)] == [(64, 16), (64, 16), (32, 8)]


SPLIT = EncoderShapes(max_model_len=128, max_step_tokens=128, split_from_tokens=64)


@pytest.mark.parametrize(
    ("lengths", "buckets"),
    [
        ([20] * 4, [64, 32]),  # 80 tokens would fill five eighths of 128
        ([20, 20, 10], [64]),  # more than three quarters of the step are filled
        ([25, 25, 25, 25], [128]),
        ([12, 12], [32]),  # small steps are no faster in parts
        ([70, 10], [128]),  # the longest text needs the large step
        ([40, 25, 7], [64, 32]),
        ([20] * 10, [128, 64, 32]),
    ],
)
def test_a_step_that_would_be_mostly_padding_becomes_a_full_one_and_the_rest(lengths, buckets):
    batcher = Batcher(SPLIT)
    batcher.add(request("a", *lengths))
    assert [plan.bucket for plan in plans(batcher, SPLIT.buckets)] == buckets


def test_the_largest_bucket_holds_any_text_while_the_others_are_compiled():
    batcher = Batcher(SHAPES)
    batcher.add(request("a", 3))
    assert [plan.bucket for plan in plans(batcher, buckets=(100,))] == [100]


def test_the_texts_of_a_client_that_is_gone_are_dropped():
    batcher = Batcher(SHAPES)
    batcher.add(request("a", 3, 4))
    batcher.add(request("b", 5))
    batcher.remove("a")
    assert (len(batcher), batcher.num_tokens) == (1, 5)
    assert [names(plan) for plan in plans(batcher)] == [["b"]]


@pytest.mark.parametrize("shapes", [SHAPES, SPLIT])
@pytest.mark.parametrize("seed", range(5))
def test_every_text_is_in_exactly_one_step_and_every_step_fits(seed, shapes):
    chance = random.Random(seed)
    batcher, expected = Batcher(shapes), []
    for number in range(20):
        lengths = [chance.randint(1, 100) for _ in range(chance.randint(1, 30))]
        batcher.add(request(str(number), *lengths))
        expected += [(str(number), index) for index in range(len(lengths))]
    found = []
    for plan in plans(batcher, shapes.buckets):
        assert plan.num_tokens <= plan.bucket
        assert len(plan.texts) <= num_texts(plan.bucket)
        found += [(text.request.id, text.number) for text in plan.texts]
    assert sorted(found) == sorted(expected)
    assert batcher.num_tokens == 0
