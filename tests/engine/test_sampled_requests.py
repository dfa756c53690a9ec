"""Sampling inside the engine: over chunks, slots, neighbours and broken logits."""

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.hand_counted import HandCountedModel
from service.compile.aot import compile_programs
from service.engine.request import FinishReason, Request, Sampling
from service.engine.runner import DeviceState, Runner
from service.engine.schedule.chunking import Chunking
from service.engine.schedule.scheduler import Scheduler
from service.engine.shapes import EngineShapes
from service.engine.steps.programs import engine_programs
from service.engine.steps.sampling import BROKEN
from service.engine.token_mask import pack_token_mask
from service.errors import NonFiniteLogits
from tests.engine.running import run, tokens_of
from tests.engine.steps.sampling_reference import adjusted, log_softmax
from tests.tolerances import SAME_LOGPROB_ATOL

VOCAB = 50
SHAPES = EngineShapes(num_slots=2, num_pages=24, page_size=4, max_model_len=48, max_prefill_tokens=8, row_tokens=4)
BREAKING_SUM = 13  # after tokens of this sum, modulo the vocabulary, the logits are NaN


class HandScoredModel(HandCountedModel):
    """Logits that differ from token to token, and follow from the sum of the sequence's tokens alone."""

    def __init__(self):
        super().__init__(vocab_size=VOCAB)

    def logits(self, weights, hidden, num_used, *, stays_split=False):
        sums = hidden[:, :1].astype(jnp.int32) % VOCAB
        tokens = jnp.arange(VOCAB)[None]
        scores = ((sums * 7 + tokens * tokens * 3) % 31).astype(jnp.float32) / 4 - 3
        return jnp.where((sums == BREAKING_SUM) & (tokens == 5), jnp.nan, scores)

    def scores(self, token_ids):
        return np.asarray(self.logits({}, jnp.array([[float(sum(token_ids))]]), 1))[0]


@pytest.fixture(scope="module")
def scored():
    return HandScoredModel()


@pytest.fixture(scope="module")
def scored_executables(scored):
    compiled = compile_programs(engine_programs(scored, SHAPES, {}), num_threads=2)
    return {name: program.executable for name, program in compiled.items()}


@pytest.fixture(scope="module")
def scored_state(scored, scored_executables):
    return DeviceState(SHAPES, scored.layer_groups, scored_executables)


@pytest.fixture(scope="module")
def scored_runner(scored, scored_executables, scored_state):
    runner = Runner(SHAPES, scored.layer_groups, {}, scored_executables, scored_state)
    runner.warm()
    return runner


@pytest.fixture
def scored_engine(scored_runner, start_engine):
    return start_engine(scored_runner, shapes=SHAPES)


def greedy(model, request):
    """Continue by the reference, with everything but drawing."""
    output = []
    while len(output) < request.max_tokens:
        scores = adjusted(model.scores([*request.prompt_ids, *output]), request, output, None)
        token_id = int(np.argmax(scores))
        if token_id in request.stop_ids:
            break
        output.append(token_id)
    return output


PENALIZED = Sampling(temperature=0.0, repetition_penalty=1.7, presence_penalty=0.6, frequency_penalty=0.9)


@pytest.mark.parametrize("prompt_len", [1, 7, 8, 9, 20])
def test_penalties_count_the_whole_prompt_however_it_was_cut_and_every_token_since(scored, scored_engine, prompt_len):
    prompt = tuple((3 * i * i + 1) % 19 for i in range(prompt_len))
    requests = [
        Request("penalized", prompt, 14, PENALIZED),
        Request("plain", prompt, 14, Sampling(temperature=0.0)),
    ]
    penalized, plain = run(scored_engine, *requests)
    assert tokens_of(penalized) == greedy(scored, requests[0])
    assert tokens_of(plain) == greedy(scored, requests[1])
    assert tokens_of(penalized) != tokens_of(plain)


def test_a_slot_keeps_nothing_of_its_last_sequence(scored, scored_engine):
    """Twelve sequences share two slots; every second one leaves penalties, a bias and stop tokens behind."""
    requests = [
        Request(
            str(i),
            (i + 1, 4, i),
            10,
            Sampling(temperature=0.0, frequency_penalty=2.0, logit_bias={i: 50.0}, min_tokens=3)
            if i % 2
            else Sampling(temperature=0.0, presence_penalty=0.1 * (i % 4)),
            frozenset({i}),
        )
        for i in range(12)
    ]
    for request, events in zip(requests, run(scored_engine, *requests), strict=True):
        if not isinstance(events, NonFiniteLogits):
            assert tokens_of(events) == greedy(scored, request)


def test_stop_tokens_wait_for_min_tokens(scored, scored_engine):
    prompt = (2, 3)
    first = greedy(scored, Request("a", prompt, 1, Sampling(temperature=0.0)))[0]
    stops = frozenset({first})
    (at_once,) = run(scored_engine, Request("a", prompt, 6, Sampling(temperature=0.0), stops))
    assert (tokens_of(at_once), at_once[-1].finish_reason) == ([], FinishReason.STOP)
    waiting = Request("b", prompt, 6, Sampling(temperature=0.0, min_tokens=4), stops)
    (late,) = run(scored_engine, waiting)
    assert tokens_of(late) == greedy(scored, waiting)
    assert len(tokens_of(late)) >= 4
    assert first not in tokens_of(late)


def test_a_seed_draws_the_same_text_in_a_crowd_of_other_options(scored_engine):
    seeded = [Request(f"s{i}", (1, 2), 8, Sampling(seed=30 + i, top_p=0.95, presence_penalty=0.5)) for i in range(3)]
    crowd = [Request(f"c{i}", (i + 3,), 8, Sampling(seed=99, top_k=4, num_logprobs=2)) for i in range(6)]
    alone = [run(scored_engine, request)[0] for request in seeded]
    together = run(scored_engine, *crowd[:3], *seeded, *crowd[3:])[3:6]
    assert [tokens_of(events) for events in together] == [tokens_of(events) for events in alone]
    assert len({tuple(tokens_of(events)) for events in alone}) == 3


def test_logprobs_are_the_models_own_whatever_the_options(scored, scored_engine):
    sampling = Sampling(temperature=1.7, top_k=5, seed=3, logit_bias={4: 9.0}, presence_penalty=1.0, num_logprobs=3)
    prompt = (1, 2)
    beside = Request("b", (5,), 4, Sampling(temperature=0.0))
    events, silent = run(scored_engine, Request("a", prompt, 4, sampling), beside)
    assert all(event.logprobs == () for event in silent)
    known = list(prompt)
    told = [pair for event in events for pair in zip(event.token_ids, event.logprobs, strict=True)]
    for token_id, logprobs in told:
        expected = log_softmax(scored.scores(known))
        assert logprobs.logprob == pytest.approx(expected[token_id], abs=SAME_LOGPROB_ATOL)
        assert [p for _, p in logprobs.top] == pytest.approx(sorted(expected)[::-1][:3], abs=SAME_LOGPROB_ATOL)
        known.append(token_id)
    assert len(told) == 4


@pytest.mark.parametrize("prompt_len", [1, 2, 8, 9, 21])
def test_the_prompts_logprobs_come_with_the_first_token_over_all_chunks(scored, scored_engine, prompt_len):
    prompt = tuple((5 * i + 1) % 11 + 1 for i in range(prompt_len))
    request = Request("a", prompt, 2, Sampling(temperature=0.0), num_prompt_logprobs=2)
    first, *later = run(scored_engine, request, Request("b", (9,) * 9, 2))[0]
    assert all(event.prompt_logprobs == () for event in later)
    if prompt_len == 1:
        assert first.prompt_logprobs in ((), (None,))
        return
    assert first.prompt_logprobs[0] is None
    for position, got in enumerate(first.prompt_logprobs[1:], 1):
        expected = log_softmax(scored.scores(prompt[:position]))
        assert got.logprob == pytest.approx(expected[prompt[position]], abs=SAME_LOGPROB_ATOL)
        assert got.rank == np.sum(expected >= expected[prompt[position]])
        assert len(got.top) == 2
    assert len(first.prompt_logprobs) == prompt_len


def test_broken_scores_end_their_sequence_alone_and_the_engine_goes_on(scored, scored_engine):
    broken = Request("broken", (6, 7), 10, Sampling(temperature=0.0))
    healthy = Request("healthy", (3, 4), 30, Sampling(temperature=0.0))
    failure, events = run(scored_engine, broken, healthy)
    assert isinstance(failure, NonFiniteLogits)
    assert "NaN" in str(failure)
    assert tokens_of(events) == greedy(scored, healthy)
    assert scored_engine.is_live
    assert scored_engine.num_open == 0
    assert tokens_of(run(scored_engine, healthy)[0]) == greedy(scored, healthy)


@pytest.mark.parametrize("allowed_ids", [{3, 8, 33, 49}, {3, 8}, {31}, {33}], ids=str)
def test_only_allowed_tokens_come(scored, scored_engine, allowed_ids):
    sampling = Sampling(temperature=0.0, allowed_mask=pack_token_mask(allowed_ids).tobytes())
    masked = Request("masked", (1, 2), 6, sampling)
    free = Request("free", (1, 2), 6, Sampling(temperature=0.0))
    of_masked, of_free = run(scored_engine, masked, free)
    allowed = np.isin(np.arange(VOCAB), list(allowed_ids))
    output = []
    while len(output) < 6:
        output.append(int(np.argmax(adjusted(scored.scores([1, 2, *output]), masked, output, allowed))))
    assert tokens_of(of_masked) == output
    assert tokens_of(of_free) == greedy(scored, free)


def run_pipelined(scheduler, runner):
    """Run until all is done, each step dispatched before the one before it is read."""
    under_way = None
    while under_way is not None or not scheduler.is_idle:
        plan = scheduler.plan()
        dispatched = (plan, runner.dispatch(plan)) if plan else None
        if under_way is not None:
            done, result = under_way
            scheduler.commit(done, result.read().tolist(), result.read_logprobs())
        under_way = dispatched


def test_a_sequence_that_lost_its_slot_goes_on_with_the_same_draws_and_the_same_penalties(scored, scored_runner):
    options = [
        Sampling(temperature=0.0, frequency_penalty=0.8, presence_penalty=0.4, repetition_penalty=1.3),
        Sampling(seed=4, top_p=0.9, frequency_penalty=1.1, min_tokens=10),
    ]
    requests = [Request(str(i), (i, 2, 5), 24, sampling) for i, sampling in enumerate(options)]
    outputs, preemptions = [], []
    for num_pages, groups in ((24, [[r] for r in requests]), (8, [requests])):
        for group in groups:
            scheduler = Scheduler(num_slots=2, num_pages=num_pages, page_size=4, chunking=Chunking.of(SHAPES))
            sequences = [scheduler.add(request) for request in group]
            run_pipelined(scheduler, scored_runner)
            assert [sequence.finish_reason for sequence in sequences] == [FinishReason.LENGTH] * len(group)
            outputs += [sequence.output_ids for sequence in sequences]
            preemptions.append(scheduler.num_preemptions)
    assert preemptions[:2] == [0, 0]
    assert preemptions[2] > 0
    assert outputs[:2] == outputs[2:]
    assert outputs[0] == greedy(scored, requests[0])


def test_penalties_and_prompt_logprobs_look_through_a_prefix_that_was_found(scored, scored_runner):
    scheduler = Scheduler(num_slots=2, num_pages=24, page_size=4, chunking=Chunking.of(SHAPES))
    prompt = tuple(i % 9 + 1 for i in range(18))
    scheduler.add(Request("first", prompt, 2, Sampling(temperature=0.0)))
    run_pipelined(scheduler, scored_runner)
    penalized = scheduler.add(Request("second", prompt, 12, PENALIZED))
    run_pipelined(scheduler, scored_runner)
    assert penalized.num_cached_tokens > 0
    assert penalized.output_ids == greedy(scored, penalized.request)
    asking = scheduler.add(Request("third", prompt, 2, Sampling(temperature=0.0), num_prompt_logprobs=0))
    run_pipelined(scheduler, scored_runner)
    assert [entry is None for entry in asking.prompt_logprobs] == [True] + [False] * 17


def test_nobody_finds_the_pages_of_a_sequence_whose_scores_broke(scored_runner):
    scheduler = Scheduler(num_slots=2, num_pages=24, page_size=4, chunking=Chunking.of(SHAPES))
    prompt = (1,) * 12 + (BREAKING_SUM + VOCAB - 12,)
    for name in ("first", "again"):
        sequence = scheduler.add(Request(name, prompt, 2, Sampling(temperature=0.0)))
        run_pipelined(scheduler, scored_runner)
        assert (sequence.finish_reason, sequence.num_cached_tokens) == (FinishReason.ERROR, 0)
        scheduler.check_integrity()


def test_a_broken_row_is_no_token(scored_state, scored_runner):
    scheduler = Scheduler(num_slots=2, num_pages=24, page_size=4, chunking=Chunking.of(SHAPES))
    sequence = scheduler.add(Request("a", (6, 7), 6))
    plan = scheduler.plan()
    token_ids = scored_runner.dispatch(plan).read().tolist()
    assert token_ids == [BROKEN]
    ((told, event),) = scheduler.commit(plan, token_ids)
    assert (told, event.token_ids, event.finish_reason) == (sequence, (), FinishReason.ERROR)
    scheduler.check_integrity()
    (last_token_ids,) = [leaf for leaf in scored_state.slots if leaf.shape == (SHAPES.num_slots,)]
    assert last_token_ids.min() >= 0
