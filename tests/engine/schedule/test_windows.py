"""Pages of layers with a window: given up behind it, found again, and never read by another."""

import random

import pytest

from service.engine.schedule.scheduler import Scheduler
from service.engine.shapes import step_pages, window_pages
from tests.engine.schedule.plain_runs import check_random_plans, request_of, run_out
from tests.engine.schedule.windows import PlainDevice, expected, held, window_shapes


@pytest.mark.parametrize("seed", range(4))
def test_random_plans_give_every_sequence_its_own_text_and_lose_no_page(seed):
    """With aborts, preemptions, forks and NaNs, over pools that are too small for all."""
    rng = random.Random(seed)
    shapes = window_shapes(num_pages=rng.choice([16, 24, 40]), w8=rng.choice([9, 14, 30]), w14=rng.choice([12, 20]))
    assert check_random_plans(rng, shapes, num_plans=2500) > 0


def test_a_long_sequence_holds_a_window_and_a_chunk():
    shapes = window_shapes(context=4096, num_pages=4096, w64=4 * (64 // 4 + 2) + 8)
    scheduler, device = Scheduler.of(shapes), PlainDevice(shapes)
    sequences = [
        scheduler.add(request_of(str(name), [(7 * i + name) % 97 for i in range(1000)], 60)) for name in range(4)
    ]
    most = 0
    before = None
    while (plan := scheduler.plan()) is not None or before is not None:
        most = max(most, sum(own for [own] in held(sequences)))
        token_ids = None if plan is None else device.run(plan)
        if before is not None:
            scheduler.commit(*before)
        before = None if plan is None else (plan, token_ids)
    assert most <= 4 * (64 / 4 + 2) + 16 / 4
    assert scheduler.num_preemptions == 0


def test_a_prefix_is_found_as_far_as_the_windows_pages_are_there():
    shapes = window_shapes(w8=20)
    scheduler, device = Scheduler.of(shapes), PlainDevice(shapes)
    prompt = list(range(40))
    scheduler.add(request_of("first", prompt, 1))
    run_out(scheduler, device)
    again = scheduler.add(request_of("again", [*prompt, 5, 6], 3))
    run_out(scheduler, device)
    assert again.num_cached_tokens == 40
    assert again.output_ids == expected(shapes, [*prompt, 5, 6], 3)
    scheduler.windows[0].forget([again.page_keys[9]])
    shorter = scheduler.add(request_of("shorter", [*prompt, 7], 3))
    run_out(scheduler, device)
    assert shorter.num_cached_tokens == 36
    assert shorter.output_ids == expected(shapes, [*prompt, 7], 3)


def test_the_second_branch_of_a_prompt_stays_findable():
    """The first to go on elsewhere finds pages of whole sequences alone; what it computes there is kept for others."""
    shapes = window_shapes(context=128, num_pages=400, w8=10)
    scheduler, device = Scheduler.of(shapes), PlainDevice(shapes)
    system = list(range(40))
    cached = []
    for number in range(4):
        sequence = scheduler.add(request_of(str(number), [*system, *(50 + number for _ in range(40))], 1))
        run_out(scheduler, device)
        cached.append(sequence.num_cached_tokens)
    assert cached[1] < 40
    assert cached[2:] == [40, 40]


def conversations(num_windows: int, *, seed: int) -> tuple[list[tuple[int, int]], bool]:
    """Run eight conversations of six turns; the pages of whole sequences are a third of all that are wanted.

    Returns:
        the conversation and the tokens that were found, of each turn, and whether all answers are right.
    """
    rng = random.Random(seed)
    shapes = window_shapes(
        context=1024, num_pages=8 * 600 // 4 // 3, w64=num_windows * window_pages(64, 4) + step_pages(16, 4)
    )
    scheduler, device = Scheduler.of(shapes), PlainDevice(shapes)
    texts = [[(31 * number + 7) % 97] for number in range(8)]
    turns = [number for number in range(8) for _ in range(6)]
    # Most turns follow soon after the one before.
    turns.sort(key=lambda number: number + rng.uniform(0, 3))
    found, is_right = [], True
    for number in turns:
        texts[number] += [rng.randrange(97) for _ in range(70)]
        sequence = scheduler.add(request_of("turn", texts[number], 30))
        run_out(scheduler, device)
        is_right = is_right and sequence.output_ids == expected(shapes, texts[number], 30)
        texts[number] += sequence.output_ids
        found.append((number, sequence.num_cached_tokens))
    return found, is_right


def of_oracle(found: list[tuple[int, int]], num_windows: int) -> int:
    """Return how many tokens are found if the last windows of so many conversations are kept, and nothing else."""
    latest, total = [], 0
    for number, num_tokens in found:
        total += num_tokens if number in latest else 0
        latest = [number, *(other for other in latest if other != number)][:num_windows]
    return total


@pytest.mark.parametrize("num_windows", [3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_conversations_find_what_as_many_windows_as_there_are_would_let_them(seed, num_windows):
    found, is_right = conversations(num_windows, seed=seed)
    of_all, _ = conversations(200, seed=seed)
    wanted = of_oracle(of_all, num_windows)
    assert is_right
    assert wanted > 4000
    assert sum(num_tokens for _, num_tokens in found) >= 0.95 * wanted
