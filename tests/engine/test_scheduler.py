"""Every question of policy, answered without an array."""

from service.engine.request import FinishReason, Request
from service.engine.scheduler import Scheduler, StepKind


def make_scheduler(**sizes: int) -> Scheduler:
    return Scheduler(**{"num_slots": 2, "num_pages": 16, "page_size": 4, "max_prefill_tokens": 8} | sizes)


def make_request(name: str, prompt_len: int = 4, max_tokens: int = 4, stop_ids: frozenset[int] = frozenset()):
    return Request(name, tuple(range(prompt_len)), max_tokens, stop_ids=stop_ids)


def step(scheduler: Scheduler, token_id: int = 7):
    plan = scheduler.plan()
    return plan, scheduler.commit(plan, [token_id] * len(plan.rows))


def test_a_prompt_is_prefilled_in_chunks_and_only_the_last_one_is_sampled():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", prompt_len=18))
    rows = [scheduler.plan().rows[0] for _ in range(3)]
    assert [(row.start, len(row.token_ids), row.is_sampled) for row in rows] == [
        (0, 8, False),
        (8, 8, False),
        (16, 2, True),
    ]


def test_prefill_and_decode_take_turns_so_that_a_long_prompt_stalls_nobody():
    scheduler = make_scheduler()
    scheduler.add(make_request("running", max_tokens=20))
    step(scheduler)
    scheduler.add(make_request("long", prompt_len=24))
    kinds = [step(scheduler)[0].kind for _ in range(6)]
    assert kinds == [StepKind.DECODE, StepKind.PREFILL] * 3


def test_a_second_request_joins_while_the_first_runs():
    scheduler = make_scheduler()
    first = scheduler.add(make_request("first", max_tokens=20))
    step(scheduler)
    step(scheduler)
    second = scheduler.add(make_request("second"))
    step(scheduler)
    plan, _ = step(scheduler)
    assert plan.kind is StepKind.DECODE
    assert [row.sequence for row in plan.rows] == [first, second]


def test_a_request_waits_for_a_slot_in_the_order_of_arrival():
    scheduler = make_scheduler()
    for name in "abc":
        scheduler.add(make_request(name))
    scheduler.plan()
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)


def test_a_request_waits_for_all_pages_that_it_can_need():
    scheduler = make_scheduler(num_pages=5)
    scheduler.add(make_request("a", prompt_len=4, max_tokens=9))  # positions 0 to 11: 3 pages
    scheduler.add(make_request("b", prompt_len=4, max_tokens=9))
    scheduler.plan()
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.pages.num_free) == (1, 1, 2)


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
    assert sequence.output_ids == [7]


def test_no_token_is_planned_beyond_max_tokens_before_the_last_one_is_read():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", max_tokens=2))
    plans = [scheduler.plan(), scheduler.plan()]
    assert scheduler.plan() is None
    assert [scheduler.commit(plan, [7])[0][1].finish_reason for plan in plans] == [None, FinishReason.LENGTH]


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
    assert scheduler.pages.num_free == scheduler.pages.num_pages
    assert scheduler.commit(plan, [7]) == []
