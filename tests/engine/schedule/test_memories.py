"""Memories: encoded once, one part between two steps, shared and found by what was encoded."""

import random

import numpy as np

from service.engine.request import FinishReason, Medium
from service.engine.shapes import StepKind
from tests.engine.schedule.scheduling import make_request, make_scheduler, names, step

FEATURES = np.zeros((1, 1), np.float32)
NUM_PAGES, NUM_PARTS = 3, 2


def hearing_scheduler(**sizes):
    return make_scheduler(**{"num_pages": 40, "memory_pages": NUM_PAGES, "encoder_parts": NUM_PARTS} | sizes)


def hears(name, digest, **options):
    return make_request(name, memory=Medium(digest, FEATURES), **options)


def kinds(scheduler, num_steps):
    return [step(scheduler)[0].kind for _ in range(num_steps)]


def finish(scheduler):
    parts = 0
    while not scheduler.is_idle:
        plan, _ = step(scheduler)
        parts += plan.part is not None
        scheduler.check_integrity()
    return parts


def test_a_sequence_waits_until_its_memory_is_whole():
    scheduler = hearing_scheduler()
    sequence = scheduler.add(hears("a", b"1"))
    first, _ = step(scheduler)
    assert (first.part.number, first.part.is_last, first.seqs) == (0, False, ())
    assert sequence.num_computed == 0
    second, _ = step(scheduler)
    assert (second.part.number, second.part.is_last) == (1, True)
    assert second.part.memory.pages == sequence.memory.pages
    assert names(step(scheduler)[0]) == "a"


def test_between_two_steps_of_others_runs_one_part():
    scheduler = hearing_scheduler(num_slots=3)
    scheduler.add(make_request("t", max_tokens=20))
    step(scheduler)
    for name in "ab":
        scheduler.add(hears(name, name.encode()))
    found = kinds(scheduler, 8)
    assert found[:8:2] == [StepKind.ENCODE] * 4
    assert StepKind.ENCODE not in found[1:8:2]


def test_equal_media_are_encoded_once_at_the_same_time_and_later():
    scheduler = hearing_scheduler(num_slots=3)
    sequences = [scheduler.add(hears(name, b"same")) for name in "abc"]
    step(scheduler)
    assert sequences[0].memory is sequences[1].memory is sequences[2].memory
    assert finish(scheduler) == NUM_PARTS - 1
    scheduler.add(hears("d", b"same"))
    assert finish(scheduler) == 0
    scheduler.add(hears("e", b"other"))
    assert finish(scheduler) == NUM_PARTS


def test_media_are_not_found_across_salts():
    scheduler = hearing_scheduler()
    for salt in (b"one", b"two"):
        scheduler.add(hears("a", b"same", cache_salt=salt))
        assert finish(scheduler) == NUM_PARTS


def test_a_prompt_is_found_with_the_same_memory_alone():
    scheduler = hearing_scheduler()
    for digest, num_cached in ((b"1", 0), (b"2", 0), (b"1", 8)):
        sequence = scheduler.add(hears("a", digest, prompt_len=9, max_tokens=1))
        finish(scheduler)
        assert sequence.num_cached_tokens == num_cached


def test_a_memory_that_is_evicted_is_encoded_anew():
    scheduler = hearing_scheduler(num_pages=6)
    for digest in (b"1", b"2", b"1"):
        scheduler.add(hears("a", digest, max_tokens=1))
        assert finish(scheduler) == NUM_PARTS


def test_an_abort_between_two_parts_leaves_the_others_to_go_on():
    scheduler = hearing_scheduler(num_slots=3)
    first, second = (scheduler.add(hears(name, name.encode())) for name in "ab")
    step(scheduler)
    scheduler.abort(first)
    scheduler.check_integrity()
    assert finish(scheduler) == NUM_PARTS
    assert second.finish_reason is FinishReason.LENGTH


def test_a_memory_of_a_broken_sequence_is_not_found_again():
    scheduler = hearing_scheduler()
    scheduler.add(hears("a", b"1"))
    for _ in range(NUM_PARTS):
        step(scheduler)
    step(scheduler, token_id=-1)
    scheduler.add(hears("b", b"1"))
    assert finish(scheduler) == NUM_PARTS


def test_a_preempted_sequence_comes_back_to_its_memory():
    scheduler = hearing_scheduler(num_slots=2, num_pages=9, max_tokens=32)
    sequences = [scheduler.add(hears(name, name.encode(), max_tokens=8)) for name in "ab"]
    finish(scheduler)
    assert scheduler.num_preemptions > 0
    assert [len(sequence.output_ids) for sequence in sequences] == [8, 8]


def test_a_thousand_arrivals_lose_no_page_and_never_run_two_parts_beside_running_streams():
    chance = random.Random(37)
    scheduler = hearing_scheduler(num_slots=4, num_pages=30, max_tokens=16)
    open_ones, was_part = [], False
    for number in range(1000):
        memory = Medium(bytes([chance.randrange(20)]), FEATURES)
        name = "abcdefgh"[number % 8]
        request = make_request(
            name, prompt_len=chance.randrange(1, 9), max_tokens=chance.randrange(1, 12), memory=memory
        )
        open_ones.append(scheduler.add(request))
        if chance.random() < 0.1:
            scheduler.abort(chance.choice(open_ones))
        for _ in range(chance.randrange(4)):
            could_decode = any(sequence.can_decode for sequence in open_ones if not sequence.is_finished)
            plan = scheduler.plan()
            if plan is None:
                break
            scheduler.commit(plan, [7] * len(plan.seqs))
            assert not (plan.part is not None and was_part and could_decode)
            was_part = plan.part is not None
        scheduler.check_integrity()
        open_ones = [sequence for sequence in open_ones if not sequence.is_finished]
    finish(scheduler)
    assert scheduler.pages.num_available == 30
