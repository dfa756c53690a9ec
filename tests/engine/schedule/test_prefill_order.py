"""The prompts of each step, and the sequences that decode beside them."""

import pytest

from service.engine.shapes import StepKind
from tests.engine.schedule.scheduling import make_request, make_scheduler, names, served, step


def one_chunk_at_a_time(**sizes):
    """Return a scheduler whose steps hold one row of a prompt."""
    return make_scheduler(row_tokens=8, max_tokens=8, num_pages=64, **sizes)


def test_prompts_of_equal_priority_alternate_by_chunks():
    scheduler = one_chunk_at_a_time(num_slots=3)
    for name in "abc":
        scheduler.add(make_request(name, prompt_len=24, max_tokens=1))
    assert served(scheduler, 9) == ["a", "b", "c"] * 3


def test_a_prompt_of_better_priority_is_prefilled_to_its_end_first():
    scheduler = one_chunk_at_a_time(num_slots=2)
    scheduler.add(make_request("patient", prompt_len=24, max_tokens=1, priority=1))
    assert served(scheduler, 1) == ["p"]
    scheduler.add(make_request("urgent", prompt_len=24, max_tokens=1))
    assert served(scheduler, 5) == ["u", "u", "u", "p", "p"]


def test_of_equal_priority_and_no_chunk_yet_the_first_to_arrive_goes_first():
    scheduler = one_chunk_at_a_time(num_slots=4)
    for name in "dacb":
        scheduler.add(make_request(name, max_tokens=1))
    assert served(scheduler, 4) == ["d", "a", "c", "b"]


def test_prompts_share_a_step_as_long_as_there_are_rows():
    scheduler = make_scheduler(num_slots=6, num_pages=64, max_tokens=16)
    for name in "abcdef":
        scheduler.add(make_request(name, prompt_len=2, max_tokens=1))
    assert served(scheduler, 2) == ["abcd", "ef"]


def test_a_prompt_takes_the_rows_that_it_needs_and_the_next_one_those_that_are_left():
    scheduler = make_scheduler(num_slots=2, num_pages=64, page_size=16, max_tokens=64)
    scheduler.add(make_request("a", prompt_len=40))
    scheduler.add(make_request("b", prompt_len=30))
    chunks = [[(p.start, p.num_tokens, p.is_sampled) for p in step(scheduler)[0].seqs] for _ in range(2)]
    assert chunks[0] == [(0, 40, True), (0, 16, False)]
    assert (16, 14, True) in chunks[1]


def test_after_a_cached_prefix_the_first_row_is_what_is_left_of_it():
    scheduler = make_scheduler(num_slots=2, num_pages=64, row_tokens=16, max_tokens=32)
    scheduler.add(make_request("a", prompt_len=9, max_tokens=1))
    step(scheduler)
    scheduler.add(make_request("a", prompt_len=60, max_tokens=1))
    assert [(p.start, p.num_tokens) for p in step(scheduler)[0].seqs] == [(8, 24)]
    assert [(p.start, p.num_tokens) for p in step(scheduler)[0].seqs] == [(32, 28)]


@pytest.fixture
def busy():
    """A scheduler in which one sequence decodes, and prompts have 82 tokens beside it."""
    scheduler = make_scheduler(num_slots=20, num_pages=64, page_size=16, max_tokens=512, step_cost_tokens=40)
    scheduler.add(make_request("running", prompt_len=16, max_tokens=40))
    assert [step(scheduler)[0].kind for _ in range(2)] == [StepKind.PREFILL, StepKind.DECODE]
    return scheduler


def test_a_step_holds_all_that_decode_and_as_much_of_a_prompt_as_they_can_wait_for(busy):
    busy.add(make_request("long", prompt_len=300))
    plan, _ = step(busy)
    assert (plan.kind, names(plan)) == (StepKind.MIXED, "rl")
    assert (plan.num_decodes, plan.num_prompt_tokens) == (1, 80)
    assert [planned.is_sampled for planned in plan.seqs] == [True, False]


def test_every_step_brings_a_token_to_those_that_decode(busy):
    busy.add(make_request("long", prompt_len=500))
    while (plan := step(busy)[0]).kind is StepKind.MIXED:
        assert plan.seqs[0].sequence.request.id == "running"
    assert names(plan) == "rl"


def test_short_prompts_share_what_those_that_decode_can_wait_for(busy):
    for name in "abcdefghij":
        busy.add(make_request(name, prompt_len=16, max_tokens=1))
    # Eighty-two tokens: five prompts.
    assert served(busy, 2) == ["rabcde", "rfghij"]


def test_a_measured_device_changes_how_much_that_is(busy):
    decode, _ = step(busy)
    busy.add(make_request("long", prompt_len=800))
    mixed, _ = step(busy)
    for _ in range(30):
        busy.observe(decode, 0.020)
        busy.observe(mixed, 0.020 + mixed.num_prompt_tokens * 0.0001)
    assert step(busy)[0].num_prompt_tokens == 400


def test_a_step_of_one_kind_is_planned_only_if_there_is_one(busy):
    assert busy.plan(only=StepKind.PREFILL) is None
    assert busy.plan(only=StepKind.DECODE).kind is StepKind.DECODE
    busy.add(make_request("a", prompt_len=16, max_tokens=1))
    assert busy.plan(only=StepKind.PREFILL).kind is StepKind.PREFILL


def test_a_decode_step_serves_in_the_order_of_rank():
    scheduler = make_scheduler(num_slots=3, num_pages=64, max_tokens=16)
    for name, priority in (("a", 1), ("b", 0), ("c", 0)):
        scheduler.add(make_request(name, prompt_len=2, max_tokens=9, priority=priority))
    step(scheduler)
    plan, _ = step(scheduler)
    assert (plan.kind, names(plan)) == (StepKind.DECODE, "bca")
    assert all(planned.is_sampled and planned.token_ids == () and planned.num_tokens == 1 for planned in plan.seqs)
    assert [(planned.slot, planned.start) for planned in plan.seqs] == [(0, 2), (1, 2), (2, 2)]


def test_a_planned_sequence_counts_its_tokens_and_keeps_its_slot():
    scheduler = make_scheduler(num_slots=2)
    scheduler.add(make_request("a", prompt_len=3, max_tokens=1))
    scheduler.add(make_request("b", prompt_len=3, max_tokens=1))
    plan = scheduler.plan()
    scheduler.commit(plan, [7, 7])
    assert [(planned.slot, planned.num_tokens) for planned in plan.seqs] == [(0, 3), (1, 3)]


def test_a_prompt_that_would_compute_a_page_of_another_waits_only_for_that_page():
    scheduler = make_scheduler(num_slots=3, num_pages=64)
    scheduler.add(make_request("a1", prompt_len=12, max_tokens=1))
    scheduler.add(make_request("a2", prompt_len=10, max_tokens=1))
    plan, _ = step(scheduler)
    assert [(planned.sequence.request.id, planned.num_tokens) for planned in plan.seqs] == [("a1", 8)]
    plan, _ = step(scheduler)
    assert [(planned.sequence.request.id, planned.start, planned.num_tokens) for planned in plan.seqs] == [
        ("a2", 8, 2),
        ("a1", 8, 4),
    ]


def test_prompts_shorter_than_a_page_never_wait_for_each_other():
    scheduler = make_scheduler(num_slots=2, num_pages=64)
    for name in ("a1", "a2"):
        scheduler.add(make_request(name, prompt_len=2, max_tokens=1))
    assert served(scheduler, 1) == ["aa"]
