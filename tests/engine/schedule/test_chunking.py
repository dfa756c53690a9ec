"""How much of prompts a step computes, by what that costs the sequences that decode beside it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.schedule.chunking import Chunking


def make_chunking(**changes):
    return Chunking(**{"row_tokens": 64, "num_rows": 32, "step_cost_tokens": 40} | changes)


def run(chunking, *, decode_s, token_s, num_steps=30):
    """Let a chunking see steps of a device."""
    for _ in range(num_steps):
        chunking.observe(num_decodes=8, num_prompt_tokens=0, elapsed_s=decode_s)
        chunking.observe(num_decodes=8, num_prompt_tokens=128, elapsed_s=decode_s + 128 * token_s)


def test_where_nothing_decodes_a_step_takes_all_that_it_holds():
    assert make_chunking().budget(0) == 2048


def test_before_a_step_was_measured_prompts_take_as_long_as_two_decode_steps_by_what_is_known():
    assert make_chunking().budget(16) == 2 * (40 + 16)
    assert make_chunking(step_cost_tokens=512).budget(64) == 2 * (512 + 64)


def test_prompts_take_as_long_as_two_decode_steps_were_measured_to_take():
    chunking = make_chunking()
    run(chunking, decode_s=0.040, token_s=0.0005)
    assert chunking.budget(8) == pytest.approx(160, abs=2)


def test_a_limit_in_seconds_counts_instead():
    chunking = make_chunking(max_stall_s=0.3)
    run(chunking, decode_s=0.040, token_s=0.001)
    assert chunking.budget(8) == pytest.approx(300, abs=2)


@pytest.mark.parametrize("max_stall_s", [None, 1e-6])
def test_a_step_computes_some_of_a_prompt_whatever_the_limit(max_stall_s):
    chunking = make_chunking(max_stall_s=max_stall_s)
    run(chunking, decode_s=0.001, token_s=0.01)
    assert chunking.budget(8) == 64
    longer_rows = make_chunking(row_tokens=256, max_stall_s=max_stall_s)
    run(longer_rows, decode_s=0.001, token_s=0.01)
    assert longer_rows.budget(8) == 256


def test_the_measure_follows_the_device():
    chunking = make_chunking()
    run(chunking, decode_s=0.040, token_s=0.0005)
    run(chunking, decode_s=0.040, token_s=0.0002)
    assert chunking.budget(8) == pytest.approx(400, abs=4)


def test_a_step_that_took_no_longer_than_a_decode_step_does_not_make_prompts_free():
    chunking = make_chunking()
    chunking.observe(num_decodes=8, num_prompt_tokens=0, elapsed_s=0.1)
    chunking.observe(num_decodes=8, num_prompt_tokens=128, elapsed_s=0.01)
    assert 0 < chunking.budget(8) <= 2048


@given(
    row_tokens=st.sampled_from([4, 16, 64]),
    start_pages=st.integers(0, 40),
    length=st.integers(1, 500),
    budget=st.integers(64, 600),
    num_rows=st.integers(1, 8),
)
def test_a_chunk_ends_with_a_row_or_with_the_prompt_and_fits_the_step(
    row_tokens, start_pages, length, budget, num_rows
):
    chunking = make_chunking(row_tokens=row_tokens)
    start = start_pages * 4
    end = chunking.end(start, start + length, num_tokens=budget, num_rows=num_rows)
    assert start < end <= start + min(length, budget)
    assert end == start + length or end % row_tokens == 0
    rows = {position // row_tokens for position in range(start, end)}
    assert chunking.count_rows(start, end) == len(rows) <= num_rows


def test_what_no_longer_fits_a_row_waits():
    assert make_chunking().end(64, 200, num_tokens=30, num_rows=2) == 64
    assert make_chunking().end(64, 90, num_tokens=30, num_rows=2) == 90
