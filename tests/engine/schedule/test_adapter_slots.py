"""Slots of adapters: who shares one, whose is replaced, and that nobody waits for one without end."""

import random
from collections import Counter

import numpy as np
import pytest

from service.engine.request import Adapter
from service.engine.schedule.scheduler import MAX_PASSED
from tests.engine.schedule.scheduling import make_request, make_scheduler, step


def adapter(name: str) -> Adapter:
    return Adapter(name, name.encode(), ((np.zeros(1, np.float32),),))


def make(num_slots: int = 4, adapter_slots: int = 2, **sizes):
    return make_scheduler(num_slots=num_slots, num_pages=256, max_tokens=64, adapter_slots=adapter_slots, **sizes)


def writes(plan) -> list[tuple[int, str]]:
    return [(write.slot, write.adapter.name) for write in plan.writes]


def test_sequences_of_one_adapter_share_its_slot_and_it_is_written_once():
    scheduler = make()
    sequences = [scheduler.add(make_request(name, adapter=adapter("x"))) for name in "ab"]
    scheduler.add(make_request("c"))
    plan, _ = step(scheduler)
    assert writes(plan) == [(sequences[0].adapter_slot, "x")]
    assert sequences[0].adapter_slot == sequences[1].adapter_slot
    later = scheduler.add(make_request("d", adapter=adapter("x")))
    plan, _ = step(scheduler)
    assert writes(plan) == []
    assert later.adapter_slot == sequences[0].adapter_slot


def test_the_adapter_that_was_used_least_recently_gives_its_slot_up():
    scheduler = make()
    for name in "xyx":
        sequence = scheduler.add(make_request(name, max_tokens=1, adapter=adapter(name)))
        step(scheduler)
        assert sequence.is_finished
    scheduler.add(make_request("z", max_tokens=1, adapter=adapter("z")))
    plan, _ = step(scheduler)
    assert [name for _, name in writes(plan)] == ["z"]
    scheduler.add(make_request("x", max_tokens=1, adapter=adapter("x")))
    plan, _ = step(scheduler)
    assert writes(plan) == []


def test_a_sequence_whose_adapter_has_no_slot_lets_others_pass_so_often_and_no_more():
    scheduler = make(num_slots=3, adapter_slots=1)
    scheduler.add(make_request("first", max_tokens=100, adapter=adapter("x")))
    step(scheduler)
    waiting = scheduler.add(make_request("waiting", adapter=adapter("y")))
    passing = [scheduler.add(make_request("passing", max_tokens=1, prompt_len=n)) for n in range(1, 12)]
    for _ in range(20):
        step(scheduler)
    assert not waiting.is_running
    assert sum(sequence.is_finished for sequence in passing) == MAX_PASSED * 3
    urgent = scheduler.add(make_request("urgent", max_tokens=1, priority=-1))
    step(scheduler)
    assert urgent.is_finished
    while not waiting.is_running:
        assert sum(sequence.is_finished for sequence in passing) == MAX_PASSED * 3
        step(scheduler)


def test_an_aborted_sequence_that_waits_for_a_slot_holds_nobody_up():
    scheduler = make(num_slots=2, adapter_slots=1)
    scheduler.add(make_request("first", max_tokens=100, adapter=adapter("x")))
    step(scheduler)
    waiting = scheduler.add(make_request("waiting", adapter=adapter("y")))
    passing = [scheduler.add(make_request("passing", max_tokens=1, prompt_len=n)) for n in range(1, 9)]
    for _ in range(8):
        step(scheduler)
    scheduler.abort(waiting)
    for _ in range(8):
        step(scheduler)
    assert all(sequence.is_finished for sequence in passing)


def test_prefixes_are_found_with_the_same_adapter_alone():
    scheduler = make()
    asked = [("a", None), ("b", "x"), ("c", "y"), ("d", "x"), ("e", None)]
    found = []
    for name, of in asked:
        request = make_request("p", prompt_len=9, max_tokens=1, adapter=None if of is None else adapter(of))
        sequence = scheduler.add(request)
        step(scheduler)
        found.append((name, sequence.num_cached_tokens))
    assert found == [("a", 0), ("b", 0), ("c", 0), ("d", 8), ("e", 8)]


@pytest.mark.parametrize("seed", range(2))
def test_many_adapters_over_few_slots_are_all_served_and_each_step_runs_with_what_was_written(seed: int):
    chance = random.Random(seed)
    scheduler = make(num_slots=6, adapter_slots=2)
    adapters = [None, *(adapter(f"{number}") for number in range(20))]
    weights = [1 / (1 + number) for number in range(len(adapters))]  # Zipf
    sequences, held, begun = [], {}, {}
    for number in range(200):
        request = make_request(
            chr(300 + number),
            prompt_len=chance.randint(1, 9),
            max_tokens=chance.randint(1, 6),
            adapter=chance.choices(adapters, weights)[0],
            flow=f"{number % 3}",
        )
        sequences.append(scheduler.add(request))
    while not all(sequence.is_finished for sequence in sequences):
        plan = scheduler.plan()
        assert plan is not None
        for write in plan.writes:
            held[write.slot] = write.adapter.name
        for planned in plan.seqs:
            own = planned.sequence.request.adapter
            assert (
                planned.sequence.adapter_slot == -1 if own is None else held[planned.sequence.adapter_slot] == own.name
            )
            begun[planned.sequence] = None
        scheduler.commit(plan, [7] * len(plan.seqs))
        scheduler.check_integrity()
    by_flow = {flow: [s.arrival for s in begun if s.request.flow == flow] for flow in "012"}
    passed = Counter(
        before
        for arrivals in by_flow.values()
        for place, before in enumerate(arrivals)
        for after in arrivals[:place]
        if after > before
    )
    assert max(passed.values()) <= MAX_PASSED * 6
