"""The prompts of each prefill step, and the decode steps between them."""

import pytest

from service.engine.shapes import StepKind
from tests.engine.schedule.scheduling import make_request, make_scheduler, names, served, step


def test_prompts_of_equal_priority_alternate_by_chunks():
    scheduler = make_scheduler(num_slots=3, num_seqs=(1,), num_pages=64)
    for name in "abc":
        scheduler.add(make_request(name, prompt_len=24, max_tokens=1))
    assert served(scheduler, 9) == ["a", "b", "c"] * 3


def test_a_prompt_of_better_priority_is_prefilled_to_its_end_first():
    scheduler = make_scheduler(num_slots=2, num_seqs=(1,), num_pages=64)
    scheduler.add(make_request("patient", prompt_len=24, max_tokens=1, priority=1))
    assert served(scheduler, 1) == ["p"]
    scheduler.add(make_request("urgent", prompt_len=24, max_tokens=1))
    assert served(scheduler, 5) == ["u", "u", "u", "p", "p"]


def test_of_equal_priority_and_no_chunk_yet_the_first_to_arrive_goes_first():
    scheduler = make_scheduler(num_slots=4, num_seqs=(1,), num_pages=64)
    for name in "dacb":
        scheduler.add(make_request(name, max_tokens=1))
    assert served(scheduler, 4) == ["d", "a", "c", "b"]


def test_a_step_is_shared_by_as_many_prompts_as_it_takes_and_the_others_follow():
    scheduler = make_scheduler(num_slots=6, num_pages=64, num_seqs=(1, 2, 4))
    for name in "abcdef":
        scheduler.add(make_request(name, prompt_len=2, max_tokens=1))
    assert served(scheduler, 2) == ["abcd", "ef"]


def test_a_shared_step_gives_each_prompt_an_equal_part():
    scheduler = make_scheduler(num_slots=2, num_pages=64, max_tokens=64, num_seqs=(1, 2))
    scheduler.add(make_request("a", prompt_len=40))
    scheduler.add(make_request("b", prompt_len=30))
    plan, _ = step(scheduler)
    assert [(planned.start, planned.num_tokens, planned.is_sampled) for planned in plan.seqs] == [
        (0, 32, False),
        (0, 30, True),
    ]


def test_a_prompt_by_itself_is_cut_where_two_steps_cost_less_than_one():
    scheduler = make_scheduler(num_slots=1, num_pages=64, max_tokens=512, step_cost_tokens=40, page_size=16)
    scheduler.add(make_request("a", prompt_len=272, max_tokens=1))
    chunks = [len(step(scheduler)[0].seqs[0].token_ids) for _ in range(2)]
    assert chunks == [256, 16]


def short_prompts(scheduler, num_prompts):
    for index in range(num_prompts):
        scheduler.add(make_request("abcdefghijklmnop"[index], prompt_len=16, max_tokens=1))


def kinds(scheduler, num_steps):
    return "".join("P" if step(scheduler)[0].kind is StepKind.PREFILL else "D" for _ in range(num_steps))


@pytest.fixture
def busy():
    """A scheduler in which one sequence decodes, and a prefill step of 16 tokens costs 56 of a budget of 552."""
    scheduler = make_scheduler(
        num_slots=20, num_pages=64, page_size=16, max_tokens=512, num_seqs=(1,), step_cost_tokens=40
    )
    scheduler.add(make_request("running", prompt_len=16, max_tokens=40))
    assert kinds(scheduler, 2) == "PD"
    return scheduler


def test_short_prompts_are_prefilled_together_up_to_the_cost_of_one_full_step(busy):
    short_prompts(busy, 12)
    assert kinds(busy, 14) == "P" * 9 + "D" + "P" * 3 + "D"


def test_the_budget_of_prefill_is_used_to_its_last_token():
    scheduler = make_scheduler(
        num_slots=20, num_pages=99, page_size=16, max_tokens=512, num_seqs=(1,), step_cost_tokens=48
    )
    scheduler.add(make_request("running", prompt_len=256, max_tokens=40))
    assert kinds(scheduler, 1) == "P"
    short_prompts(scheduler, 5)  # four of them and the long one cost 560, as much as a full step
    assert kinds(scheduler, 6) == "PPPPDP"


def test_each_decode_step_renews_the_budget_of_prefill(busy):
    for _ in range(3):
        short_prompts(busy, 5)
        assert kinds(busy, 6) == "P" * 5 + "D"


def test_a_prompt_of_exactly_the_budget_waits_for_no_decode_step(busy):
    busy.add(make_request("full", prompt_len=512, max_tokens=1))
    assert kinds(busy, 2) == "PD"


def test_a_full_step_after_a_short_one_waits_for_a_decode_step(busy):
    short_prompts(busy, 1)
    assert kinds(busy, 1) == "P"
    busy.add(make_request("z", prompt_len=512, max_tokens=1))
    assert kinds(busy, 2) == "DP"


def test_the_rest_of_a_long_prompt_costs_no_more_than_its_own_tokens(busy):
    busy.add(make_request("z", prompt_len=528, max_tokens=1))
    assert kinds(busy, 2) == "PD"
    short_prompts(busy, 8)  # they and the rest, which comes after them, fit the budget
    assert kinds(busy, 10) == "P" * 9 + "D"


def test_a_budget_that_was_spent_while_nothing_could_decode_is_counted_anew():
    scheduler = make_scheduler(
        num_slots=20, num_pages=99, page_size=16, max_tokens=512, num_seqs=(1,), step_cost_tokens=40
    )
    # Each ends with its first token, so that nothing decodes.
    short_prompts(scheduler, 10)
    assert kinds(scheduler, 10) == "P" * 10
    scheduler.add(make_request("running", prompt_len=16, max_tokens=40))
    assert kinds(scheduler, 1) == "P"
    short_prompts(scheduler, 9)
    # The tenth and the eleventh prompt were the first two of a new budget.
    assert kinds(scheduler, 8) == "P" * 7 + "D"


def test_a_step_of_one_kind_is_planned_only_if_there_is_one(busy):
    assert busy.plan(only=StepKind.PREFILL) is None
    assert busy.plan(only=StepKind.DECODE).kind is StepKind.DECODE
    short_prompts(busy, 1)
    assert busy.plan(only=StepKind.PREFILL).kind is StepKind.PREFILL


def test_decode_steps_run_while_no_prompt_waits(busy):
    assert kinds(busy, 5) == "DDDDD"


def test_a_decode_step_serves_in_the_order_of_rank():
    scheduler = make_scheduler(num_slots=3, num_pages=64)
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
    scheduler = make_scheduler(num_slots=3, num_pages=64, num_seqs=(1, 2, 4))
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
