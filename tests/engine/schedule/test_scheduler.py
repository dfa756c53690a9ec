"""Every question of policy, answered without an array."""

import pytest

from service.engine.request import FinishReason, Sampling, StepLogprobs, TokenLogprobs
from service.engine.schedule.page_pool import PageIntegrityError
from service.engine.shapes import StepKind
from tests.engine.schedule.scheduling import make_request, make_scheduler, step


def test_a_prompt_is_prefilled_in_chunks_and_only_the_last_one_is_sampled():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", prompt_len=18))
    rows = [scheduler.plan().seqs[0] for _ in range(3)]
    assert [(row.start, len(row.token_ids), row.is_sampled) for row in rows] == [
        (0, 8, False),
        (8, 8, False),
        (16, 2, True),
    ]


def test_a_long_prompt_keeps_nobody_from_decoding():
    scheduler = make_scheduler()
    scheduler.add(make_request("running", max_tokens=20))
    step(scheduler)
    scheduler.add(make_request("long", prompt_len=24))
    assert [step(scheduler)[0].kind for _ in range(4)] == [StepKind.MIXED] * 3 + [StepKind.DECODE]


def test_one_kind_by_itself_comes_as_long_as_there_is_any_of_it():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", prompt_len=18, max_tokens=3))
    scheduler.add(make_request("b", prompt_len=3, max_tokens=2))
    assert scheduler.plan(only=StepKind.DECODE) is None
    kinds = []
    for only in (StepKind.PREFILL, StepKind.DECODE):
        while plan := scheduler.plan(only=only):
            kinds.append((plan.kind, len(plan.seqs)))
    assert [kind for kind, _ in kinds] == [StepKind.PREFILL] * (len(kinds) - 2) + [StepKind.DECODE] * 2
    assert [num_rows for _, num_rows in kinds[-2:]] == [2, 1]


def test_a_second_request_joins_while_the_first_runs():
    scheduler = make_scheduler()
    first = scheduler.add(make_request("first", max_tokens=20))
    step(scheduler)
    step(scheduler)
    second = scheduler.add(make_request("second"))
    step(scheduler)
    plan, _ = step(scheduler)
    assert plan.kind is StepKind.DECODE
    assert [row.sequence for row in plan.seqs] == [first, second]


def test_a_request_waits_for_a_slot_in_the_order_of_arrival():
    scheduler = make_scheduler()
    for name in "abc":
        scheduler.add(make_request(name))
    scheduler.plan()
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)


def test_a_request_waits_until_its_prompt_fits_into_pages():
    scheduler = make_scheduler(num_pages=5)
    scheduler.add(make_request("a", prompt_len=12))
    scheduler.add(make_request("b", prompt_len=12))
    step(scheduler)
    assert (scheduler.num_running, scheduler.num_waiting) == (1, 1)


def test_the_lowest_priority_value_goes_first_and_then_the_first_to_arrive():
    scheduler = make_scheduler(num_slots=1)
    for name, priority in (("a", 1), ("b", 0), ("c", 0)):
        scheduler.add(make_request(name, max_tokens=1, priority=priority))
    assert [step(scheduler)[1][0][0].request.id for _ in range(3)] == ["b", "c", "a"]


def test_short_prompts_pass_a_long_one_between_its_chunks():
    scheduler = make_scheduler(num_slots=4, num_pages=64)
    long = scheduler.add(make_request("long", prompt_len=40))
    step(scheduler)
    short = scheduler.add(make_request("short", prompt_len=4))
    plan, events = step(scheduler)
    assert {row.sequence for row in plan.seqs} == {long, short}
    assert [sequence for sequence, _ in events] == [short]


def test_several_short_prompts_share_a_prefill_step():
    scheduler = make_scheduler(num_slots=4, num_pages=64, max_tokens=16)
    for name in "abcd":
        scheduler.add(make_request(name, prompt_len=2))
    plan, events = step(scheduler)
    assert (plan.kind, len(plan.seqs), len(events)) == (StepKind.PREFILL, 4, 4)


def test_who_would_compute_the_same_page_waits_and_finds_it():
    scheduler = make_scheduler(num_slots=3, max_tokens=16)
    first, twin = (scheduler.add(make_request(name, prompt_len=7)) for name in ("a1", "a2"))
    other = scheduler.add(make_request("b"))
    plan, _ = step(scheduler)
    assert [row.sequence for row in plan.seqs] == [first, other]
    while not any(row.sequence is twin for row in plan.seqs):
        plan, _ = step(scheduler)
    assert [(row.start, len(row.token_ids)) for row in plan.seqs if row.sequence is twin] == [(4, 3)]


def test_out_of_pages_the_youngest_gives_back_and_later_goes_on_from_its_own_output():
    scheduler = make_scheduler(num_pages=4)
    old = scheduler.add(make_request("old", prompt_len=4, max_tokens=9))
    young = scheduler.add(make_request("young", prompt_len=4, max_tokens=7))
    for token_id in range(100, 120):
        plan = scheduler.plan()
        scheduler.commit(plan, [token_id] * len(plan.seqs))
        scheduler.check_integrity()
        if scheduler.is_idle:
            break
    assert scheduler.num_preemptions == 1
    assert (len(old.output_ids), len(young.output_ids)) == (9, 7)
    assert young.finish_reason is FinishReason.LENGTH


def test_a_later_request_finds_the_pages_of_an_equal_beginning():
    scheduler = make_scheduler()
    first = scheduler.add(make_request("a", prompt_len=10, max_tokens=1))
    step(scheduler)
    step(scheduler)
    second = scheduler.add(make_request("a", prompt_len=11, max_tokens=1))
    plan, [(_, event)] = step(scheduler)
    assert first.is_finished
    assert (plan.seqs[0].start, event.num_cached_tokens) == (8, 8)
    assert second.request.prompt_ids[8:] == plan.seqs[0].token_ids


def test_an_equal_prompt_leaves_one_token_to_compute():
    scheduler = make_scheduler()
    for _ in range(2):
        scheduler.add(make_request("a", prompt_len=8, max_tokens=1))
        plan, _ = step(scheduler)
    assert (plan.seqs[0].start, len(plan.seqs[0].token_ids)) == (4, 4)


def test_another_salt_finds_nothing():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", prompt_len=8, max_tokens=1, cache_salt=b"one"))
    step(scheduler)
    scheduler.add(make_request("a", prompt_len=8, max_tokens=1, cache_salt=b"two"))
    plan, [(_, event)] = step(scheduler)
    assert (plan.seqs[0].start, event.num_cached_tokens) == (0, 0)


def test_what_a_running_sequence_has_cached_is_shared_at_once():
    scheduler = make_scheduler()
    running = scheduler.add(make_request("a", prompt_len=8, max_tokens=9))
    step(scheduler)
    sharing = scheduler.add(make_request("a", prompt_len=9, max_tokens=9))
    step(scheduler)
    step(scheduler)
    assert sharing.pages[:2] == running.pages[:2]
    scheduler.check_integrity()


def test_max_tokens_ends_a_sequence_with_length_and_frees_all():
    scheduler = make_scheduler()
    sequence = scheduler.add(make_request("a", max_tokens=2))
    _, first = step(scheduler)
    _, last = step(scheduler)
    assert first[0][1].finish_reason is None
    assert last[0][1].finish_reason is FinishReason.LENGTH
    assert sequence.output_ids == [7, 7]
    assert scheduler.is_idle
    scheduler.check_integrity()


def test_a_stop_token_ends_a_sequence_and_is_not_part_of_it():
    scheduler = make_scheduler()
    sequence = scheduler.add(make_request("a", stop_ids=frozenset({9})))
    step(scheduler, token_id=7)
    _, events = step(scheduler, token_id=9)
    assert events[0][1].token_ids == ()
    assert events[0][1].finish_reason is FinishReason.STOP
    assert events[0][1].stop == (9, None)
    assert sequence.output_ids == [7]


def test_a_stop_token_has_its_log_probability_if_the_others_have_theirs():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", stop_ids=frozenset({9}), sampling=Sampling(num_logprobs=0)))
    entry = TokenLogprobs(-0.5, 1)
    [(_, event)] = scheduler.commit(scheduler.plan(), [9], StepLogprobs((entry,), ((),)))
    assert (event.token_ids, event.logprobs, event.stop) == ((), (), (9, entry))


def test_no_token_is_planned_beyond_max_tokens_before_the_last_one_is_read():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", max_tokens=2))
    plans = [scheduler.plan(), scheduler.plan()]
    assert scheduler.plan() is None
    assert [scheduler.commit(plan, [7])[0][1].finish_reason for plan in plans] == [None, FinishReason.LENGTH]


@pytest.mark.parametrize("token_ids", [[], [7, 7]])
def test_a_step_brings_one_token_for_each_of_its_sequences(token_ids):
    scheduler = make_scheduler()
    scheduler.add(make_request("a"))
    with pytest.raises(ValueError, match="sampled tokens"):
        scheduler.commit(scheduler.plan(), token_ids)


def test_what_a_step_under_way_brings_to_an_ended_sequence_is_dropped():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", max_tokens=8, stop_ids=frozenset({9})))
    first, second = scheduler.plan(), scheduler.plan()
    assert scheduler.commit(first, [9])[0][1].finish_reason is FinishReason.STOP
    assert scheduler.commit(second, [5]) == []


def test_an_abort_frees_slot_and_pages_at_once_whether_running_or_waiting():
    scheduler = make_scheduler(num_slots=1)
    running, waiting = scheduler.add(make_request("running")), scheduler.add(make_request("waiting"))
    plan = scheduler.plan()
    scheduler.abort(waiting)
    scheduler.abort(running)
    scheduler.abort(running)
    assert scheduler.is_idle
    assert scheduler.pages.num_available == scheduler.pages.num_pages
    assert scheduler.commit(plan, [7]) == []


def test_the_check_of_the_scheduler_notices_a_lost_page():
    scheduler = make_scheduler(num_pages=8)
    scheduler.add(make_request("a"))
    step(scheduler)
    scheduler.check_integrity()
    scheduler.pages.allocate(1)
    with pytest.raises(PageIntegrityError, match="1 held should be the 8 pages"):
        scheduler.check_integrity()


def test_the_check_of_the_scheduler_notices_a_slot_with_two_owners():
    scheduler = make_scheduler()
    first, second = scheduler.add(make_request("a")), scheduler.add(make_request("b"))
    step(scheduler)
    second.slot = first.slot
    with pytest.raises(AssertionError, match=r"slots \[0, 0\] have a double"):
        scheduler.check_integrity()
