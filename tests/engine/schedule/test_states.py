"""Slots of states: a sequence reads its own, or one that was kept after exactly its prefix, and loses none."""

import random
from dataclasses import replace

import pytest

from service.engine.request import FinishReason
from service.engine.schedule.scheduler import Scheduler
from service.engine.schedule.speculation import Speculation
from service.engine.shapes import StateShapes
from tests.engine.drafting import Oracle
from tests.engine.schedule.plain_runs import check_random_plans, request_of, run_out
from tests.engine.schedule.windows import PlainDevice, expected, window_shapes


def begin(shapes):
    return Scheduler.of(shapes), PlainDevice(shapes)


@pytest.mark.parametrize("seed", range(6))
def test_random_plans_give_every_sequence_its_own_text_and_lose_no_slot(seed):
    """With aborts, preemptions, forks and NaNs, over pages and slots that are too few for all."""
    rng = random.Random(seed)
    states = StateShapes(rng.choice([4, 5, 7, 12]), rng.choice([8, 16, 64]))
    windows = rng.choice([{}, {"w14": 14}])
    shapes = window_shapes(num_pages=rng.choice([16, 24, 40]), states=states, **windows)
    assert check_random_plans(rng, shapes, num_plans=2000) > 0


@pytest.mark.parametrize("seed", range(4))
def test_drafts_change_no_text_and_lose_no_slot(seed):
    """Of those that are drafted some are wrong; the state has read none of them."""
    rng = random.Random(seed)
    states = StateShapes(rng.choice([4, 5, 7, 12]), rng.choice([8, 16, 64]))
    windows = rng.choice([{}, {"w14": 14}])
    num_pages, num_drafts = rng.choice([16, 24, 40]), rng.choice([2, 5])
    shapes = window_shapes(num_pages=num_pages, num_drafts=num_drafts, states=states, **windows)
    known: dict[tuple[int, ...], list[int]] = {}

    def continuation(sequence):
        prompt = sequence.request.prompt_ids
        if prompt not in known:
            known[prompt] = expected(shapes, prompt, 30)
        return known[prompt][len(sequence.output_ids) :]

    speculation = Speculation(shapes, [Oracle(continuation, 0.2, seed)], is_adaptive=False)
    assert check_random_plans(rng, shapes, num_plans=500, speculation=speculation) > 0
    assert speculation.num_draft_tokens > speculation.num_accepted_tokens > 100


@pytest.mark.parametrize("seed", range(4))
def test_as_many_slots_as_sequences_suffice(seed):
    rng = random.Random(seed)
    shapes = window_shapes(num_slots=2, num_pages=24, states=StateShapes(2, 8))
    check_random_plans(rng, shapes, num_plans=1000)


def test_a_repeated_prompt_is_found_up_to_its_last_row():
    scheduler, device = begin(window_shapes(states=StateShapes(8, 64)))
    prompt = list(range(29))
    for cached in (0, 24):
        sequence = scheduler.add(request_of("one", prompt, 3))
        run_out(scheduler, device)
        assert sequence.num_cached_tokens == cached
        assert sequence.output_ids == expected(device.shapes, prompt, 3)


def test_the_next_turn_finds_the_last_row_of_the_answer():
    scheduler, device = begin(window_shapes(context=128, num_pages=80, states=StateShapes(8, 64)))
    prompt = list(range(21))
    first = scheduler.add(request_of("first", prompt, 40))
    run_out(scheduler, device)
    text = [*prompt, *first.output_ids]
    second = scheduler.add(request_of("second", [*text, 1, 2, 3], 3))
    run_out(scheduler, device)
    assert second.num_cached_tokens == (len(text) - 1) // 8 * 8
    assert second.output_ids == expected(device.shapes, [*text, 1, 2, 3], 3)


@pytest.mark.parametrize("length", [23, 24, 25, 31, 32, 33])
@pytest.mark.parametrize("max_tokens", [1, 7, 8, 9, 10])
def test_a_sequence_that_ends_at_the_end_of_a_row_leaves_a_state_that_is_a_cold_ones(length, max_tokens):
    scheduler, device = begin(window_shapes(states=StateShapes(8, 64)))
    prompt = list(range(length))
    first = scheduler.add(request_of("first", prompt, max_tokens))
    run_out(scheduler, device)
    text = [*prompt, *first.output_ids]
    second = scheduler.add(request_of("second", [*text, 9], 5))
    run_out(scheduler, device)
    assert second.num_cached_tokens == (len(text) - 1) // 8 * 8
    assert second.output_ids == expected(device.shapes, [*text, 9], 5)


def test_a_sequence_that_stops_leaves_no_state_of_the_step_that_it_did_not_want():
    """The step after the one that samples a stop token is planned already, and writes the state once more."""
    for length in range(17, 26):
        scheduler, device = begin(window_shapes(states=StateShapes(8, 8)))
        prompt = list(range(length))
        wanted = expected(device.shapes, prompt, 12)
        for stop in range(1, 12):
            request = request_of("first", prompt, 20)
            request = type(request)(request.id, request.prompt_ids, 20, request.sampling, frozenset({wanted[stop]}))
            first = scheduler.add(request)
            run_out(scheduler, device)
            assert first.finish_reason is FinishReason.STOP
            text = [*prompt, *first.output_ids, *wanted[len(first.output_ids) :][:2], 5]
            second = scheduler.add(request_of("second", text, 4))
            run_out(scheduler, device)
            assert second.output_ids == expected(device.shapes, text, 4)
            scheduler.check_integrity()


def test_copies_of_one_prompt_compute_it_once():
    scheduler, device = begin(window_shapes(context=64, states=StateShapes(12, 64)))
    prompt = list(range(37))
    copies = [scheduler.add(request_of(str(number), prompt, 3)) for number in range(3)]
    run_out(scheduler, device)
    assert [copy.num_cached_tokens for copy in copies] == [0, 32, 32]
    assert {tuple(copy.output_ids) for copy in copies} == {tuple(expected(device.shapes, prompt, 3))}


@pytest.mark.parametrize("question", [3, 30, 700])
def test_the_second_user_of_a_system_message_finds_it_where_its_request_says_that_it_ends(question):
    shapes = window_shapes(context=4096, num_pages=4096, states=StateShapes(4, 4096))  # two, and two to keep
    scheduler, device = begin(shapes)
    system, cached = [number % 97 for number in range(3001)], []
    for number in range(3):
        text = [*system, *(60 + number for _ in range(question))]
        request = replace(request_of(str(number), text, 2), shared_len=len(system))
        sequence = scheduler.add(request)
        run_out(scheduler, device)
        cached.append(sequence.num_cached_tokens)
        assert sequence.output_ids == expected(shapes, text, 2)
    assert cached == [0, 3000, 3000]


def test_the_third_user_of_a_beginning_finds_where_the_first_two_parted():
    scheduler, device = begin(window_shapes(context=256, num_pages=400, states=StateShapes(24, 1024)))
    system, cached = list(range(43)), []
    for number in range(4):
        text = [*system, *(60 + number for _ in range(100))]
        sequence = scheduler.add(request_of(str(number), text, 2))
        run_out(scheduler, device)
        cached.append(sequence.num_cached_tokens)
        assert sequence.output_ids == expected(device.shapes, text, 2)
    assert cached == [0, 0, 40, 40]


def conversations(num_spare: int, *, seed: int) -> list[tuple[int, int, int]]:
    """Run eight conversations of six turns, with slots for one sequence that runs and so many more.

    Returns:
        the conversation, the tokens that were found, and those of its last row's end before, of each turn.
    """
    rng = random.Random(seed)
    shapes = window_shapes(context=1024, num_pages=8 * 600 // 4, states=StateShapes(2 + num_spare, 1024))
    scheduler, device = begin(shapes)
    texts = [[(31 * number + 7) % 97] for number in range(8)]
    turns = [number for number in range(8) for _ in range(6)]
    # Most turns follow soon after the one before.
    turns.sort(key=lambda number: number + rng.uniform(0, 3))
    found = []
    for number in turns:
        kept = len(texts[number]) // 8 * 8 if len(texts[number]) > 1 else 0
        texts[number] += [rng.randrange(97) for _ in range(70)]
        sequence = scheduler.add(request_of("turn", texts[number], 30))
        run_out(scheduler, device)
        assert sequence.output_ids == expected(shapes, texts[number], 30)
        texts[number] += sequence.output_ids
        found.append((number, sequence.num_cached_tokens, kept))
    return found


@pytest.mark.parametrize("num_spare", [6, 8])
@pytest.mark.parametrize("seed", range(3))
def test_conversations_find_what_an_oracle_would_have_kept(seed, num_spare):
    """It keeps the last state of each of the latest conversations, and that of the prompt before it: two slots each."""
    latest, wanted, total = [], 0, 0
    for number, num_cached, kept in conversations(num_spare, seed=seed):
        wanted += kept if number in latest else 0
        total += num_cached
        latest = [number, *(other for other in latest if other != number)][: num_spare // 2]
    assert wanted > 4000
    assert total >= 0.9 * wanted
