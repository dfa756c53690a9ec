"""Drafts change how many steps a text takes, and nothing of the text: every option, event and end is as without."""

import asyncio
from dataclasses import replace

import pytest

from service.engine.request import FinishReason, Request, Sampling
from service.engine.runner import Runner
from service.engine.schedule.proposers import ForcedProposer, PredictionProposer
from service.engine.schedule.speculation import Speculation
from service.engine.token_mask import pack_token_mask
from service.errors import ConstraintError, NonFiniteLogits
from service.observability.model_metrics import ModelMetrics
from tests.engine.drafting import SHAPES, LongScoredModel, Oracle, scored_executables
from tests.engine.running import run, tokens_of
from tests.engine.test_constraints import Remainders
from tests.engine.test_sampled_requests import VOCAB


class Rule(Remainders):
    """The same for the tokens of this model."""

    def allowed(self, output):
        return {token_id for token_id in super().allowed(output) if token_id < VOCAB}

    @property
    def is_free(self):
        return len(self.allowed(self.accepted)) == VOCAB


@pytest.fixture(scope="module")
def scored():
    return LongScoredModel()


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["host", "accelerator"])
def shapes(request):
    return replace(SHAPES, has_sampling_variants=request.param)


@pytest.fixture(scope="module")
def drafting_runner(scored, shapes):
    runner = Runner(shapes, scored.layer_groups, {}, scored_executables(shapes))
    runner.warm()
    return runner


@pytest.fixture
def start(start_engine, drafting_runner, shapes):
    def start(speculation=None, **sizes):
        sized = replace(shapes, **sizes)
        return start_engine(drafting_runner, ModelMetrics(), shapes=sized, speculation=speculation)

    return start


def options():
    allowed = pack_token_mask(range(0, 50, 2)).tobytes()
    yield Sampling(temperature=0.0)
    yield Sampling(temperature=0.0, num_logprobs=3)
    yield Sampling(temperature=1.5, seed=3)
    yield Sampling(temperature=1.0, seed=4, top_p=0.8)
    yield Sampling(temperature=0.7, seed=5, top_k=5, min_p=0.01, num_logprobs=0)
    yield Sampling(temperature=1.0, seed=6, logit_bias={3: 5.0, 7: -100.0}, min_tokens=6)
    yield Sampling(temperature=1.0, seed=7, allowed_mask=allowed)
    yield Sampling(temperature=1.0, seed=8, group_from=40, scores=True, num_logprobs=0)
    yield Sampling(temperature=0.9, seed=9, presence_penalty=0.6, frequency_penalty=0.3, repetition_penalty=1.2)


def requests(draw_constraint=lambda number: None, prompts=((6, 5, 2), (1, 2, 3, 4, 5, 6, 7, 8, 9), (4,))):
    return [
        Request(
            f"{number}-{len(prompt)}",
            prompt,
            5 + 7 * (number % 4),
            sampling,
            stop_ids=frozenset({13, 44} if number % 3 else ()),
            constraint=draw_constraint(number),
        )
        for number, sampling in enumerate(options())
        for prompt in prompts
    ]


def outcome(events):
    """Return all that a client is told of a sequence, whichever events told it."""
    if isinstance(events, Exception):
        return type(events), str(events)
    logprobs = [
        (entry.logprob, entry.rank, entry.top) for event in events for entry in event.logprobs
    ]  # floats of the hand-scored model are equal
    return tokens_of(events), events[-1].finish_reason, logprobs, events[-1].stop


def foreseen(engine, asked):
    """Return what follows each prompt, as an engine without drafts says."""
    texts = {}
    for request, events in zip(asked, run(engine, *asked), strict=True):
        texts[request.id] = [5] * 20 if isinstance(events, Exception) else tokens_of(events)
    return lambda sequence: [*texts[sequence.request.id][len(sequence.output_ids) :], 9, 9]


@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0])
def test_every_option_gives_the_text_of_no_drafts(start, shapes, wrong):
    asked = requests()
    without = [outcome(events) for events in run(start(), *asked)]
    oracle = Oracle(foreseen(start(), asked), wrong)
    speculation = Speculation(shapes, [oracle], is_adaptive=False)
    assert [outcome(events) for events in run(start(speculation), *asked)] == without
    assert speculation.num_draft_tokens > 100
    assert (speculation.num_accepted_tokens > 50) == (wrong < 1)
    assert not oracle.sequences, "what has ended is forgotten"


def test_rows_of_drafts_survive_the_loss_of_pages(start, shapes):
    asked = requests(prompts=((6, 5, 2), (1, 2, 3, 4, 5, 6, 7, 8, 9)))
    without = [outcome(events) for events in run(start(), *asked)]
    speculation = Speculation(shapes, [Oracle(foreseen(start(), asked), 0.2)], is_adaptive=False)
    engine = start(speculation, num_pages=12)
    assert [outcome(events) for events in run(engine, *asked)] == without
    assert speculation.num_accepted_tokens > 30


@pytest.mark.parametrize("failing", [{}, {"fails_to_fill_at": 4}, {"fails_to_accept_at": 3}, {"empty_at": 5}], ids=str)
def test_a_rule_holds_each_draft_and_fails_where_it_fails_without(start, shapes, failing):
    def asked():
        return requests(lambda number: Rule(**failing) if number % 2 else Rule(free_every=3))

    without = [outcome(events) for events in run(start(), *asked())]
    assert any(told[0] is ConstraintError for told in without) == bool(failing)
    speculation = Speculation(shapes, [Oracle(foreseen(start(), asked()), 0.2)], is_adaptive=False)
    assert [outcome(events) for events in run(start(speculation), *asked())] == without
    assert speculation.num_accepted_tokens > 30


def test_scores_that_break_after_a_draft_end_the_sequence_there(start, shapes):
    asked = [Request(str(seed), (540, 2), 20, Sampling(temperature=0.8, seed=seed)) for seed in range(30)]
    speculation = Speculation(shapes, [Oracle(foreseen(start(), asked))], is_adaptive=False)
    without, told = run(start(), *asked), run(start(speculation), *asked)
    assert [outcome(events) for events in told] == [outcome(events) for events in without]
    assert {type(events) for events in told} == {NonFiniteLogits, list}


def test_an_oracle_that_is_right_takes_a_step_for_six_tokens(start, shapes):
    request = Request("a", (1, 2, 3), 40, Sampling(temperature=1.0, seed=1))
    continuation = foreseen(start(), [request])

    class Whole(Oracle):
        def propose(self, sequence, limit):
            return self._continuation(sequence)[:limit]

    speculation = Speculation(shapes, [Whole(continuation)], is_adaptive=False)
    engine = start(speculation)
    [events] = run(engine, request)
    assert events[-1].finish_reason is FinishReason.LENGTH
    # Rows of eight positions cut some drafts.
    assert speculation.num_drafts <= 11
    assert speculation.num_accepted_tokens == speculation.num_draft_tokens


def test_a_text_that_repeats_is_drafted_from_itself(start, shapes):
    """The sum of the tokens modulo 50 of a hand-scored model leads into a circle."""
    request = Request("a", (1, 2, 3), 44, Sampling(temperature=0.0))
    speculation = Speculation(shapes, is_adaptive=False)
    assert outcome(run(start(speculation), request)[0]) == outcome(run(start(), request)[0])


def test_an_abort_between_draft_and_verification_leaves_every_page_free(start, shapes):
    speculation = Speculation(shapes, [Oracle(lambda sequence: [1, 2, 3, 4, 5])], is_adaptive=False)
    engine = start(speculation)

    async def abort_soon(number):
        stream = engine.submit(Request(str(number), (number + 1, 2), 40, Sampling(seed=number)))
        async for _ in stream:
            stream.abort()

    async def main():
        await asyncio.gather(*(abort_soon(number) for number in range(20)))

    asyncio.run(asyncio.wait_for(main(), 60))
    assert engine.num_open == 0


def predicted(events):
    return tuple(map(sum, zip(*(event.num_predicted for event in events), strict=True)))


@pytest.mark.parametrize("change", [None, "first", "middle", "shorter", "longer", "other", "one token"])
def test_a_prediction_changes_no_answer_and_is_counted(start, shapes, change):
    request = Request("a", (1, 2, 3), 40, Sampling(temperature=1.0, seed=2))
    [plain] = run(start(), request)
    text = tokens_of(plain)
    prediction = {
        "first": [9, *text[1:]],
        "middle": [*text[:15], 7, 7, 7, *text[18:]],
        "shorter": text[:12],
        "longer": [*text[:5], 8, 8, 8, 8, *text[5:]],
        "other": [3, 1, 4, 1, 5] * 8,
        "one token": [text[4]] * 100_000,
        None: text,
    }[change]
    speculation = Speculation(shapes, [PredictionProposer()], is_adaptive=False)
    [events] = run(start(speculation), replace(request, prediction=tuple(prediction)))
    assert outcome(events) == outcome(plain)
    accepted, rejected = predicted(events)
    assert (accepted, accepted + rejected) == (speculation.num_accepted_tokens, speculation.num_draft_tokens)
    if change in (None, "middle", "longer", "first"):
        assert accepted > 20
    assert rejected == 0 or change not in (None, "shorter")


class Forcing(Rule):
    """A rule of which some tokens are forced."""

    def allowed(self, output):
        return {(sum(output) * 7) % VOCAB} if len(output) % 6 else super().allowed(output)

    def forced_tokens(self):
        output = list(self.accepted)
        while len(output) % 6:
            output += self.allowed(output)
        return output[len(self.accepted) :]


def test_forced_tokens_take_a_step_a_run(start, shapes):
    request = Request("a", (1, 2, 3), 36, Sampling(temperature=1.0, seed=2), constraint=Forcing())
    [plain] = run(start(), request)
    speculation = Speculation(shapes, [ForcedProposer()], is_adaptive=False)
    [events] = run(start(speculation), replace(request, constraint=Forcing()))
    assert outcome(events) == outcome(plain)
    assert len(tokens_of(events)) == 36
    assert speculation.num_accepted_tokens == speculation.num_draft_tokens
    # A step for each run of five forced tokens and the one that is chosen after them, and for a row that cuts one.
    assert 36 - speculation.num_accepted_tokens <= 15
