"""How many prompts share a prefill step, on a device that likes many rows and on one that likes long ones."""

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
