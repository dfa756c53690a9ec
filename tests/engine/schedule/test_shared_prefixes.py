"""Prefix sharing: the pages that later requests find."""

import pytest

from service.engine.request import FinishReason, Request, StepLogprobs, TokenEvent, TokenLogprobs
from tests.engine.schedule.scheduling import make_request, make_scheduler, step


def first_start(scheduler, prompt_len, name="a", **options):
    """Add one more request of one token, and return where its first chunk starts."""
    scheduler.add(make_request(name, prompt_len=prompt_len, max_tokens=1, **options))
    plan, _ = step(scheduler)
    return plan.seqs[0].start


def test_pages_of_a_sequence_that_failed_are_never_found():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", prompt_len=8, max_tokens=9))
    _, [(_, event)] = step(scheduler, token_id=-1)
    assert event == TokenEvent((), FinishReason.ERROR)
    assert scheduler.is_idle
    assert first_start(scheduler, 9) == 0


def test_pages_that_were_found_before_a_failure_are_not_found_after_it():
    scheduler = make_scheduler()
    assert first_start(scheduler, 8) == 0
    scheduler.add(make_request("a", prompt_len=12, max_tokens=9))
    plan, _ = step(scheduler, token_id=-1)
    assert plan.seqs[0].start == 8
    assert first_start(scheduler, 12) == 0


@pytest.mark.parametrize("ending", ["abort", "stop"])
def test_pages_of_a_sequence_that_ended_otherwise_are_found(ending):
    scheduler = make_scheduler()
    sequence = scheduler.add(make_request("a", prompt_len=8, max_tokens=9, stop_ids=frozenset({9})))
    step(scheduler)
    if ending == "abort":
        scheduler.abort(sequence)
    else:
        step(scheduler, token_id=9)
    assert sequence.is_finished
    assert first_start(scheduler, 9) == 8


def test_the_output_of_a_sequence_is_found_by_the_next_message_of_its_conversation():
    scheduler = make_scheduler(max_tokens=32)
    sequence = scheduler.add(make_request("a", prompt_len=6, max_tokens=7))
    while not sequence.is_finished:
        step(scheduler)
    # 6 tokens of the prompt and 6 of the output are cached: the last one was sampled and never read.
    conversation = (*sequence.request.prompt_ids, *sequence.output_ids, 8, 8, 8, 8)
    scheduler.add(Request("b", conversation, max_tokens=1))
    plan, [(_, event)] = step(scheduler)
    assert plan.seqs[0].start == 12
    assert event.num_cached_tokens == 12


def test_token_zero_is_a_token_like_any_other():
    scheduler = make_scheduler()
    sequence = scheduler.add(make_request("a", max_tokens=2))
    assert [step(scheduler, token_id=0)[1][0][1].token_ids for _ in range(2)] == [(0,), (0,)]
    assert sequence.output_ids == [0, 0]


def test_a_token_that_was_not_read_is_in_no_findable_page():
    scheduler = make_scheduler(max_tokens=32)
    sequence = scheduler.add(make_request("a", prompt_len=7, max_tokens=9))
    step(scheduler)
    scheduler.plan()  # the eighth position: its page would be whole, but the token is not known yet
    scheduler.abort(sequence)
    scheduler.check_integrity()
    assert first_start(scheduler, 12) == 4


def test_prompt_logprobs_need_every_position_computed():
    scheduler = make_scheduler(max_tokens=32)
    assert first_start(scheduler, 9) == 0
    scheduler.add(make_request("a", prompt_len=9, max_tokens=1, num_prompt_logprobs=0))
    plan, [(_, event)] = step(scheduler)
    assert (plan.seqs[0].start, event.num_cached_tokens) == (0, 0)
    assert first_start(scheduler, 9) == 8


def test_prompt_logprobs_come_with_the_first_token_and_the_first_position_has_none():
    scheduler = make_scheduler(max_tokens=4)
    sequence = scheduler.add(make_request("a", prompt_len=6, max_tokens=2, num_prompt_logprobs=0))
    reported = [TokenLogprobs(-float(i), 1, ()) for i in range(6)]
    events = []
    for of_prompt in ((*reported[1:5],), (reported[5],), ()):
        plan = scheduler.plan()
        events += scheduler.commit(plan, [7], StepLogprobs((reported[0],), (of_prompt,)))
    assert sequence.is_finished
    assert events[0][1].prompt_logprobs == (None, *reported[1:])
    assert events[1][1].prompt_logprobs == ()


def test_prompt_logprobs_of_a_chunk_that_runs_again_take_the_places_of_the_same_ones():
    sequence = make_scheduler().add(make_request("a", prompt_len=6, num_prompt_logprobs=0))
    reported = [TokenLogprobs(-float(i), 1, ()) for i in range(6)]
    for start, end in ((0, 3), (3, 6), (0, 3)):
        sequence.keep_prompt_logprobs(start, tuple(reported[start + 1 : end + 1]))
    assert sequence.prompt_logprobs == [None, *reported[1:]]


def test_prompt_logprobs_come_even_where_the_first_token_stops():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", prompt_len=2, num_prompt_logprobs=0, stop_ids=frozenset({9})))
    reported = TokenLogprobs(-1.0, 1, ())
    [(_, event)] = scheduler.commit(scheduler.plan(), [9], StepLogprobs((None,), ((reported,),)))
    assert event.prompt_logprobs == (None, reported)


def test_each_token_brings_its_own_logprobs_and_none_where_none_were_asked():
    scheduler = make_scheduler()
    for name in "ab":
        scheduler.add(make_request(name, prompt_len=2, max_tokens=2))
    reported = [TokenLogprobs(-float(i), 1, ()) for i in range(2)]
    events = scheduler.commit(scheduler.plan(), [7, 7], StepLogprobs(tuple(reported), ((), ())))
    assert [event.logprobs for _, event in events] == [(reported[0],), (reported[1],)]
    events = scheduler.commit(scheduler.plan(), [7, 7])
    assert [event.logprobs for _, event in events] == [(), ()]


def test_cached_tokens_are_reported_once_and_only_of_the_prompt():
    scheduler = make_scheduler(max_tokens=32)
    assert first_start(scheduler, 8) == 0
    scheduler.add(make_request("a", prompt_len=9, max_tokens=3))
    events = [step(scheduler)[1][0][1] for _ in range(3)]
    assert [event.num_cached_tokens for event in events] == [8, 0, 0]


def test_cached_tokens_are_reported_even_where_the_first_token_stops():
    scheduler = make_scheduler(max_tokens=32)
    assert first_start(scheduler, 8) == 0
    scheduler.add(make_request("a", prompt_len=9, max_tokens=3, stop_ids=frozenset({9})))
    _, [(_, event)] = step(scheduler, token_id=9)
    assert event.num_cached_tokens == 8
