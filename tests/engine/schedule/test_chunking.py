"""The number of prompts in a prefill step, on devices that prefer many rows and on those that prefer long ones."""

import pytest

from service.engine.schedule.chunking import Chunking
from service.engine.shapes import PrefillShapes

# Reading the weights takes as long as computing 512 tokens, or 40.
ACCELERATOR = Chunking(PrefillShapes(max_tokens=512, num_seqs=(1, 2, 4), step_cost_tokens=512))
PROCESSOR = Chunking(PrefillShapes(max_tokens=512, num_seqs=(1, 4), step_cost_tokens=40))


@pytest.mark.parametrize(
    ("lengths", "on_accelerator", "on_processor"),
    [
        ([128], 1, 1),
        ([2000, 2000], 1, 1),
        ([200, 200], 2, 1),
        ([128, 128, 128], 4, 1),
        ([128, 128], 2, 1),
        ([128, 128, 128, 128], 4, 4),
        ([2000, 128, 128, 128], 1, 1),
        ([20, 20, 20, 20], 4, 1),
    ],
)
def test_as_many_prompts_share_a_step_as_make_a_token_cheapest(lengths, on_accelerator, on_processor):
    assert ACCELERATOR.choose_num_seqs(lengths) == on_accelerator
    assert PROCESSOR.choose_num_seqs(lengths) == on_processor


def test_where_a_step_costs_little_its_sizes_lie_close():
    assert PROCESSOR.shapes.chunk_sizes == (16, 64, 128, 256, 512)
    assert ACCELERATOR.shapes.chunk_sizes == (16, 64, 256, 512)


def test_where_as_many_tokens_come_for_the_same_cost_fewer_prompts_share_a_step():
    shapes = PrefillShapes(max_tokens=64, num_seqs=(1, 2, 4), step_cost_tokens=64)
    assert Chunking(shapes).choose_num_seqs([64, 64, 64, 64]) == 1
    assert Chunking(shapes).choose_num_seqs([32, 32, 32, 32]) == 2


def test_a_number_of_prompts_is_chosen_only_if_half_as_many_would_leave_one_out():
    shapes = PrefillShapes(max_tokens=512, num_seqs=(1, 2, 4, 8), step_cost_tokens=512)
    chunking = Chunking(shapes)
    assert [chunking.choose_num_seqs([16] * count) for count in range(1, 10)] == [1, 2, 4, 4, 8, 8, 8, 8, 8]


# Sizes of 16, 64, 128, 256 and 512 tokens; a step costs 48 besides.
CUTTING = Chunking(PrefillShapes(max_tokens=512, num_seqs=(1,), step_cost_tokens=48))


@pytest.mark.parametrize(
    ("length", "first"),
    [
        (5, 5),  # shorter than the smallest step
        (16, 16),
        (30, 30),  # 16 and another step for 14 cost as much as 80, one padded to 64 less
        (64, 64),
        (80, 80),  # 64 + 48 + 16 is no less than 128
        (144, 128),  # 128 + 48 + 16 is less than 256
        (208, 208),  # 128 + 48 + 128 is more than 256
        (300, 256),  # 256 + 48 + 64 is less than 512
        (500, 500),
        (512, 512),
        (513, 512),
        (5000, 512),
    ],
)
def test_a_prompt_is_cut_where_two_steps_cost_less_than_one(length, first):
    assert CUTTING.first_chunk(length) == first


def test_a_step_costs_its_padded_tokens_and_reading_the_weights():
    assert CUTTING.cost([5]) == 48 + 16
    assert CUTTING.cost([16]) == 48 + 16
    assert CUTTING.cost([17]) == 48 + 64
    assert CUTTING.cost([600]) == 48 + 512
    assert CUTTING.cost([5, 5]) == 48 + 512
    assert CUTTING.prefill_budget == 48 + 512


@pytest.mark.parametrize("length", [5, 300, 512, 5000])
def test_a_prompt_that_waits_alone_has_the_step_to_itself(length):
    shapes = PrefillShapes(max_tokens=512, num_seqs=(1, 2, 4), step_cost_tokens=48)
    assert Chunking(shapes).choose_num_seqs([length]) == 1
