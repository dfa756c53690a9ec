"""Texts lie in the shortest windows that hold them, and no text crosses the edge of one."""

import random

import numpy as np
import pytest

from service.encoder.batcher import EncoderPlan, PlannedText
from service.encoder.packing import pack
from service.encoder.request import EncodeRequest
from service.kernels.windows import windows


def plan_of(bucket, *lengths, second_from=()):
    texts = tuple(tuple(range(1000 * number, 1000 * number + length)) for number, length in enumerate(lengths))
    request = EncodeRequest("r", texts, second_from)
    return EncoderPlan(bucket, [PlannedText(request, number) for number in range(len(texts))])


def window_of(plan):
    return windows(plan.bucket)[int(pack(plan).window)]


@pytest.mark.parametrize(
    ("bucket", "lengths", "window"),
    [
        (512, [16] * 32, 32),
        (512, [20, 12] * 16, 32),
        (512, [20] * 16, 32),
        (512, [20] * 17, 128),
        (512, [33] * 3, 128),
        (512, [128] * 4, 128),
        (512, [100] * 5, 512),
        (64, [3], 32),
        (500, [3], 500),
    ],
)
def test_a_step_has_the_shortest_windows_that_hold_its_texts(bucket, lengths, window):
    assert window_of(plan_of(bucket, *lengths)) == window


@pytest.mark.parametrize("seed", range(5))
def test_every_text_is_whole_and_in_one_window(seed):
    chance = random.Random(seed)
    lengths = [4]
    while sum(lengths) < 400:
        lengths.append(chance.randint(4, 110))
    plan = plan_of(512, *lengths, second_from=tuple(length // 2 for length in lengths))
    step, window = pack(plan), window_of(plan)
    covered = np.zeros(512, bool)
    for number, text in enumerate(plan.texts):
        first, last = step.texts.first[number], step.texts.last[number]
        places = slice(first, last + 1)
        assert first // window == last // window
        assert tuple(step.tokens.token_ids[places]) == text.token_ids
        np.testing.assert_array_equal(step.texts.segments[places], number)
        np.testing.assert_array_equal(step.tokens.positions[places], np.arange(len(text.token_ids)))
        np.testing.assert_array_equal(step.tokens.types[places], np.arange(len(text.token_ids)) >= text.second_from)
        assert not covered[places].any()
        covered[places] = True
    assert (step.texts.segments[~covered] >= len(lengths)).all()
