"""Runs of a scheduler over a device in plain numbers, whose every text is known."""

import random
from dataclasses import replace

from service.engine.request import FinishReason, Request, Sampling
from service.engine.schedule.plan import Plan
from service.engine.schedule.scheduler import Scheduler
from service.engine.schedule.speculation import Speculation
from service.engine.shapes import EngineShapes, step_pages, window_pages
from tests.engine.schedule.windows import PlainDevice, expected, held

VOCAB_SIZE = 97


def request_of(name: str, prompt, max_tokens: int, priority: int = 0) -> Request:
    return Request(name, tuple(prompt), max_tokens, Sampling(temperature=0.0), frozenset(), priority)


def run_out(scheduler, device, results=None):
    events, before = [], None
    while True:
        if before is not None and must_read(scheduler, before[0]):
            events += scheduler.commit(*before)
            before = None
        plan = scheduler.plan()
        token_ids = None if plan is None else device.run(plan)
        if before is not None:
            events += scheduler.commit(*before)
        if plan is None and before is None:
            return events
        before = None if plan is None else (plan, token_ids)


def must_read(scheduler: Scheduler, plan: Plan) -> bool:
    """Return whether a plan is read before the next one is made, as the engine's loop does it."""
    return plan.num_drafts > 0 or scheduler.may_draft


def check_random_plans(
    rng: random.Random, shapes: EngineShapes, *, num_plans: int, speculation: Speculation | None = None
) -> int:
    """Run plans over pools that are too small for all, and return how many tokens the last prompts find again."""
    scheduler, device = Scheduler.of(shapes, speculation=speculation), PlainDevice(shapes)
    beginnings = [[rng.randrange(VOCAB_SIZE) for _ in range(40)] for _ in range(3)]
    sequences, aborted, prompts, before, num_failed = [], set(), [], None, 0
    bound = [window_pages(w.window, 4) + step_pages(16, 4) for w in shapes.windows]
    for _ in range(num_plans):
        if scheduler.num_waiting < 3 and rng.random() < 0.5:
            prompt = [*rng.choice(beginnings)[: rng.randrange(40)], *(rng.randrange(VOCAB_SIZE) for _ in range(4))]
            if sequences and rng.random() < 0.3:  # the next turn of a conversation
                prompt = (sequences[rng.randrange(len(sequences))].known_ids + prompt)[: rng.randrange(8, 44)]
            count, priority = rng.randrange(1, 20), rng.randrange(2)
            shared_len = rng.randrange(len(prompt) + 1)
            for _ in range(rng.choice([1, 1, 3])):
                request = request_of(str(len(sequences)), prompt, count, priority)
                sequences.append(scheduler.add(replace(request, shared_len=shared_len)))
                prompts.append(prompt)
        if sequences and rng.random() < 0.05:
            scheduler.abort(sequence := rng.choice(sequences[-8:]))
            aborted.add(sequence)
        if before is not None and must_read(scheduler, before[0]):
            scheduler.commit(*before)
            before = None
        plan = scheduler.plan()
        is_failing = plan is not None and rng.random() < 0.01
        failing = {rng.choice(plan.seqs).slot} if is_failing else set()
        num_failed += is_failing
        token_ids = None if plan is None else device.run(plan, failing)
        if before is not None:
            scheduler.commit(*before)
        before = None if plan is None else (plan, token_ids)
        scheduler.check_integrity()
        assert all(own <= most for of_sequence in held(sequences) for own, most in zip(of_sequence, bound, strict=True))
    if before is not None:
        scheduler.commit(*before)
    run_out(scheduler, device)
    scheduler.check_integrity()
    assert scheduler.num_used_pages == 0
    assert scheduler.num_preemptions
    assert num_failed
    for sequence, prompt in zip(sequences, prompts, strict=True):
        wanted = expected(shapes, prompt, sequence.request.max_tokens)
        assert sequence.output_ids == wanted[: len(sequence.output_ids)]
        if sequence.finish_reason is FinishReason.LENGTH:
            assert len(sequence.output_ids) == len(wanted)
    again = [scheduler.add(request_of("again", prompt, 5)) for prompt in prompts[-20:]]
    run_out(scheduler, device)
    # Nobody finds what a sequence has left that failed.
    assert [s.output_ids for s in again] == [expected(shapes, prompt, 5) for prompt in prompts[-20:]]
    return sum(s.num_cached_tokens for s in again)
