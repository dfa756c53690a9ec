"""A draft model beside its target: whatever it drafts, the answers are those without; and it sees all that it should.

The draft model reads its own cache, never the input. So one that equals its target is right about each token at
temperature 0, as long as it has seen each token of each sequence in its place.
"""

import asyncio
from dataclasses import replace

import jax
import pytest

from service.engine.drafter import Drafter
from service.engine.request import FinishReason, Request, Sampling
from service.engine.runner import Runner
from service.engine.schedule.speculation import Speculation
from service.engine.shapes import Bucket
from service.engine.steps.draft import ModelDrafting, draft_programs
from service.engine.steps.inputs import step_inputs
from service.observability.model_metrics import ModelMetrics
from tests.engine.drafting import SHAPES as ANY_SHAPES
from tests.engine.drafting import LongScoredModel, executables_of, scored_executables
from tests.engine.running import run, tokens_of
from tests.engine.test_speculation import outcome, requests

SHAPES = replace(ANY_SHAPES, has_sampling_variants=False)
GREEDY = Sampling(temperature=0.0)


class WrongModel(LongScoredModel):
    """One that foresees few of its target's tokens, and some that the target does not have."""

    vocab_size = 60

    def __init__(self):
        super().__init__()
        self.vocab_size = 60

    def logits(self, weights, hidden, num_used, *, stays_split=False):
        return super(LongScoredModel, self).logits(weights, hidden + 1, num_used).repeat(2, axis=1)[:, :60]


@pytest.fixture(scope="module")
def runner():
    return Runner(SHAPES, LongScoredModel.layer_groups, {}, scored_executables(SHAPES))


@pytest.fixture(scope="module")
def drafting():
    """The executables of a draft model that equals the target, and of one that does not."""
    return {
        is_right: executables_of(draft_programs(ModelDrafting(model), SHAPES, {}))
        for is_right, model in ((True, LongScoredModel()), (False, WrongModel()))
    }


@pytest.fixture
def start(start_engine, runner, drafting):
    def start(is_right=None, *, context_len=48, proposers=(), **sizes):
        """Start an engine with such a draft model, or without one."""
        shapes = replace(SHAPES, **sizes)
        if is_right is None:
            return start_engine(runner, ModelMetrics(), shapes=shapes), None
        cache = jax.tree.leaves(ModelDrafting(LongScoredModel()).make_caches(SHAPES))
        drafter = Drafter(SHAPES, {}, drafting[is_right], cache, context_len=context_len, vocab_size=50)
        for step in drafter.padded_steps():
            step()
        speculation = Speculation(shapes, proposers, model=drafter, is_adaptive=False)
        return start_engine(runner, ModelMetrics(), shapes=shapes, speculation=speculation), speculation

    return start


def outcomes(engine, asked):
    return [outcome(events) for events in run(engine, *asked)]


@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize("num_pages", [24, 12], ids=["", "pages are lost"])
def test_every_option_gives_the_text_of_no_drafts(start, is_right, num_pages):
    asked = requests()
    without = outcomes(start()[0], asked)
    engine, speculation = start(is_right, num_pages=num_pages)
    assert outcomes(engine, asked) == without
    assert speculation.num_draft_tokens > 100
    assert speculation.num_accepted_tokens < speculation.num_draft_tokens


def test_a_model_that_equals_its_target_is_always_right(start):
    asked = [Request(str(n), tuple(range(1, 4 + 5 * n)), 30 - 5 * n, GREEDY) for n in range(4)]
    engine, speculation = start(True)
    assert outcomes(engine, asked) == outcomes(start()[0], asked)
    assert speculation.num_accepted_tokens == speculation.num_draft_tokens > 30


def test_it_catches_up_on_prefixes_that_it_has_and_has_not_seen(start):
    """The first two answers come from no draft: with a penalty none is made. Their pages are found by the others."""
    begin = tuple(range(1, 18))
    undrafted = replace(GREEDY, presence_penalty=0.1)
    engine, speculation = start(True)
    run(engine, Request("unseen", begin, 6, undrafted))
    assert speculation.num_drafts == 0
    for number in range(6):
        [events] = run(engine, Request(str(number), (*begin, *range(number)), 16, GREEDY))
        assert events[0].num_cached_tokens >= 16
    assert speculation.num_accepted_tokens == speculation.num_draft_tokens > 40


def test_a_turn_that_goes_on_with_an_answer_finds_what_was_drafted_of_it(start, drafting, monkeypatch):
    read, name = [], "draft-read"
    executable = drafting[True][name]

    def reading(weights, cache, inputs):
        step = step_inputs(inputs.step.packed, inputs.step.page_table, Bucket(0, 2), has_adapters=False)
        read.append(int(step.row_tokens.sum()))
        return executable(weights, cache, inputs)

    monkeypatch.setitem(drafting[True], name, reading)
    engine, speculation = start(True)
    [events] = run(engine, Request("a", (1, 2, 3), 24, GREEDY))
    begin = (1, 2, 3, *tokens_of(events))
    read.clear()
    [events] = run(engine, Request("b", (*begin, 5), 8, GREEDY))
    assert events[0].num_cached_tokens >= 20
    assert sum(read) < 8, "whole pages of the first turn are known"
    assert speculation.num_accepted_tokens == speculation.num_draft_tokens


def test_nothing_is_drafted_beyond_the_contexts_end_or_the_most_tokens(start):
    for context_len, prompt_len, max_tokens in ((48, 30, 18), (20, 3, 40), (48, 3, 1), (48, 3, 2), (3, 3, 9)):
        request = Request("a", tuple(range(1, 1 + prompt_len)), max_tokens, GREEDY)
        engine, speculation = start(True, context_len=context_len)
        [events] = run(engine, request)
        assert events[-1].finish_reason is FinishReason.LENGTH
        assert len(tokens_of(events)) == max_tokens
        assert speculation.num_accepted_tokens == speculation.num_draft_tokens <= max(context_len - prompt_len, 0)


def test_a_prompt_longer_than_a_step_is_caught_up_with_in_parts(start):
    request = Request("a", tuple(i % 50 for i in range(36)), 12, GREEDY)
    engine, speculation = start(True)
    [events] = run(engine, request)
    assert outcome(events) == outcomes(start()[0], [request])[0]
    assert speculation.num_accepted_tokens == speculation.num_draft_tokens > 3


def test_a_model_that_fails_is_asked_no_more_and_ends_no_request(start, monkeypatch, caplog):
    for part in ("catch_up", "draft"):
        engine, speculation = start(True)
        with monkeypatch.context() as patch:

            def fail(*_):
                raise RuntimeError("the device says no")

            patch.setattr(Drafter, part, fail)
            asked = [Request(f"{part} {n}", (n + 1, 2), 12, GREEDY) for n in range(3)]
            assert outcomes(engine, asked) == outcomes(start()[0], asked)
        assert speculation.num_drafts == 0
        assert "draft model" in {getattr(record, "source", None) for record in caplog.records}


def test_aborts_between_draft_and_verification_leave_every_page_free(start):
    engine, speculation = start(True, num_pages=12)

    async def abort_soon(number):
        stream = engine.submit(Request(str(number), (number % 7 + 1, 2), 40, Sampling(seed=number)))
        async for event in stream:
            if event.token_ids and number % 3:
                stream.abort()

    async def main():
        await asyncio.gather(*(abort_soon(number) for number in range(24)))

    asyncio.run(asyncio.wait_for(main(), 60))
    assert engine.num_open == 0
    assert speculation.num_drafts > 0
