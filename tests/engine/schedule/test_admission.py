"""Admission: slots, pages, and the order in which requests wait for them."""

import numpy as np
import pytest

from service.engine.request import FinishReason, Sampling
from service.engine.token_mask import pack_token_mask
from tests.engine.schedule.scheduling import make_request, make_scheduler, names, step


def test_the_lowest_free_slot_is_taken_first():
    scheduler = make_scheduler(num_slots=3, num_pages=64)
    sequences = [scheduler.add(make_request(name, prompt_len=2, max_tokens=9)) for name in "abc"]
    step(scheduler)
    assert [sequence.slot for sequence in sequences] == [0, 1, 2]
    scheduler.abort(sequences[1])
    scheduler.abort(sequences[0])
    following = [scheduler.add(make_request(name, prompt_len=2)) for name in "de"]
    step(scheduler)
    assert [sequence.slot for sequence in following] == [0, 1]


def test_a_small_request_does_not_overtake_one_that_waits_for_pages():
    scheduler = make_scheduler(num_slots=3, num_pages=4)
    scheduler.add(make_request("running", prompt_len=8, max_tokens=3))
    step(scheduler)
    large, small = (
        scheduler.add(make_request(name, prompt_len=length, max_tokens=1)) for name, length in (("l", 12), ("s", 1))
    )
    step(scheduler)
    assert (large.is_running, small.is_running) == (False, False)
    step(scheduler)
    step(scheduler)
    assert (large.is_running, small.is_running) == (True, True)


def test_pages_that_running_prompts_still_need_are_not_promised_to_another():
    scheduler = make_scheduler(num_slots=2, num_pages=4)
    scheduler.add(make_request("long", prompt_len=12, max_tokens=1))
    step(scheduler)  # two of its three pages are taken
    waiting = scheduler.add(make_request("waiting", prompt_len=5, max_tokens=1))
    scheduler.plan()
    assert not waiting.is_running
    assert (scheduler.num_running, scheduler.num_waiting) == (1, 1)


def test_a_request_whose_pages_are_just_enough_is_admitted():
    scheduler = make_scheduler(num_slots=2, num_pages=4)
    scheduler.add(make_request("long", prompt_len=12, max_tokens=1))
    step(scheduler)
    fitting = scheduler.add(make_request("fitting", prompt_len=4, max_tokens=1))
    scheduler.plan()
    assert fitting.is_running


def test_pages_of_sequences_that_decode_are_not_counted_twice():
    scheduler = make_scheduler(num_slots=2, num_pages=4)
    scheduler.add(make_request("decoding", prompt_len=8, max_tokens=3))
    step(scheduler)
    step(scheduler)
    fitting = scheduler.add(make_request("fitting", prompt_len=4, max_tokens=1))
    scheduler.plan()
    assert fitting.is_running


def test_a_request_that_never_fits_is_a_fault_of_the_caller():
    scheduler = make_scheduler(num_pages=3)
    scheduler.add(make_request("fits", prompt_len=8, max_tokens=5))  # the last token is never cached
    with pytest.raises(AssertionError):
        scheduler.add(make_request("too long", prompt_len=8, max_tokens=6))


def test_waiting_and_running_sequences_are_counted():
    scheduler = make_scheduler(num_slots=1)
    assert scheduler.is_idle
    sequence = scheduler.add(make_request("a", max_tokens=2))
    assert (scheduler.is_idle, scheduler.num_waiting, scheduler.num_running) == (False, 1, 0)
    step(scheduler)
    assert (scheduler.is_idle, scheduler.num_waiting, scheduler.num_running) == (False, 0, 1)
    step(scheduler)
    assert sequence.is_finished
    assert (scheduler.is_idle, scheduler.num_waiting, scheduler.num_running) == (True, 0, 0)


def test_allowed_tokens_reach_the_device_as_a_mask():
    scheduler = make_scheduler()
    mask = pack_token_mask({3, 40}).tobytes()
    masked, other = (scheduler.add(make_request(name, sampling=Sampling(allowed_mask=mask))) for name in "ab")
    free = scheduler.add(make_request("free"))
    assert masked.token_mask.tolist() == pack_token_mask({3, 40}).tolist()
    assert np.shares_memory(masked.token_mask, other.token_mask)  # the device thread makes no copy for each
    assert free.token_mask is None


def test_an_abort_of_a_running_sequence_lets_the_next_one_in():
    scheduler = make_scheduler(num_slots=1)
    running, waiting = (scheduler.add(make_request(name)) for name in "ab")
    step(scheduler)
    scheduler.abort(running)
    assert running.finish_reason is FinishReason.ABORT
    assert names(scheduler.plan()) == "b"
    assert waiting.is_running
