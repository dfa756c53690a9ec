"""Decode steps as one program: the tokens are those of the parts, and one call is all that a step takes."""

import threading
from dataclasses import dataclass, replace

import jax.numpy as jnp
import pytest

from benchmarks.hand_counted import HandCountedModel
from service.compile.aot import compile_programs
from service.compile.lazy import BuildPlan, LazyExecutables
from service.compile.program import Executable
from service.engine.request import Request, Sampling
from service.engine.runner import Runner
from service.engine.schedule.chunking import Chunking
from service.engine.schedule.scheduler import Scheduler
from service.engine.shapes import EngineShapes
from service.engine.steps.keys import compile_order, sufficient_keys, whole_keys
from service.engine.steps.programs import engine_programs
from service.models.interface import LayerGroup

PARTS = EngineShapes(num_slots=1, num_pages=4, page_size=4, max_model_len=16, max_prefill_tokens=8, row_tokens=4)
WHOLE = replace(PARTS, has_whole_steps=True)
VOCAB = 50
PROMPT, NUM_TOKENS = (3, 1, 4), 8
GREEDY = Sampling(temperature=0.0)
PLAIN = [GREEDY, Sampling(temperature=0.8, seed=5), Sampling(temperature=1.1, top_p=0.9, top_k=20, seed=6)]


def names_of(keys):
    return list(map(str, keys))


class TwoGroups(HandCountedModel):
    """Sums of sums: the second group keeps what the first one hands on. Logits differ from token to token."""

    layer_groups = (LayerGroup("sum", range(1), ()), LayerGroup("sum", range(1, 2), ()))

    def logits(self, weights, hidden, num_used, *, stays_split=False):
        return ((hidden[:, :1].astype(jnp.int32) * 7 + jnp.arange(VOCAB)[None] ** 2 * 3) % 31).astype(
            jnp.float32
        ) / 4 - 3


@dataclass(frozen=True)
class Counted(Executable):
    """An executable that notes its name at each call."""

    name: str = ""
    called: list[str] | None = None

    def __call__(self, *arguments):
        self.called.append(self.name)
        return super().__call__(*arguments)


@pytest.fixture(scope="module")
def decoder():
    return TwoGroups(VOCAB)


@pytest.fixture(scope="module")
def executables(decoder):
    programs = [*engine_programs(decoder, WHOLE, {}), *engine_programs(decoder, PARTS, {})]
    compiled = compile_programs(list({program.name: program for program in programs}.values()), num_threads=2)
    return {name: program.executable for name, program in compiled.items()}


@pytest.fixture
def called():
    return []


@pytest.fixture
def counted(executables, called):
    return {name: Counted(**vars(executable), name=name, called=called) for name, executable in executables.items()}


def tokens_and_calls(runner, called, sampling=GREEDY):
    """Return the tokens of a request and, for each decode step, the programs that it called."""
    scheduler = Scheduler(num_slots=1, num_pages=4, page_size=4, chunking=Chunking.of(PARTS))
    sequence = scheduler.add(Request("a", PROMPT, NUM_TOKENS, sampling))
    scheduler.commit(plan := scheduler.plan(), runner.dispatch(plan).read().tolist())
    calls = []
    while (plan := scheduler.plan()) is not None:
        called.clear()
        scheduler.commit(plan, runner.dispatch(plan).read().tolist())
        calls.append(list(called))
    return sequence.known_ids[len(PROMPT) :], calls


@pytest.mark.parametrize("sampling", PLAIN, ids=["greedy", "drawn", "limited"])
def test_a_step_is_one_call_and_chooses_the_tokens_that_its_parts_choose(decoder, counted, called, sampling):
    of_parts, calls = tokens_and_calls(Runner(PARTS, decoder.layer_groups, {}, counted), called, sampling)
    assert all(len(step) == 1 + len(decoder.layer_groups) + 1 for step in calls)
    tokens, calls = tokens_and_calls(Runner(WHOLE, decoder.layer_groups, {}, counted), called, sampling)
    assert len(set(of_parts)) > 1
    assert tokens == of_parts
    assert len(calls) == NUM_TOKENS - 1
    assert [len(step) for step in calls] == [1] * len(calls)
    assert {name for step in calls for name in step} <= set(names_of(whole_keys(WHOLE)))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.0, num_logprobs=2),
        Sampling(temperature=0.0, frequency_penalty=0.5),
        Sampling(temperature=0.0, logit_bias={7: 3.0}),
    ],
)
def test_a_step_whose_sampling_does_more_is_two_calls(decoder, executables, counted, called, sampling):
    of_parts, _ = tokens_and_calls(Runner(PARTS, decoder.layer_groups, {}, executables), called, sampling)
    tokens, calls = tokens_and_calls(Runner(WHOLE, decoder.layer_groups, {}, counted), called, sampling)
    assert tokens == of_parts
    assert calls == [["hidden-seqs1-rows0", "sample-general-seqs1"]] * len(calls)


def test_a_step_has_an_empty_row_until_the_whole_one_is_compiled(decoder, counted, called):
    names = names_of(compile_order(WHOLE, decoder.layer_groups))
    sufficient = names_of(sufficient_keys(WHOLE, decoder.layer_groups))
    may_compile_rest = threading.Event()

    def make(name):
        assert name in sufficient or may_compile_rest.wait(60)
        return counted[name]

    plan = BuildPlan(make, num_first_threads=1, num_rest_threads=1, builds_on_lookup=False)
    lazy = LazyExecutables(names, len(sufficient), plan)
    for name in sufficient:
        lazy[name]
    runner = Runner(WHOLE, decoder.layer_groups, {}, lazy)
    tokens, calls = tokens_and_calls(runner, called)
    assert all("embed-seqs1-rows1" in step for step in calls)
    assert runner.waited_for_compile_s == 0
    may_compile_rest.set()
    lazy.wait()
    assert tokens_and_calls(runner, called) == (tokens, [["whole-greedy-seqs1-rows0"]] * len(calls))


def test_running_everything_on_padding_calls_every_whole_step(decoder, counted, called):
    Runner(WHOLE, decoder.layer_groups, {}, counted).warm()
    assert set(names_of(whole_keys(WHOLE))) <= set(called)


def test_no_request_waits_for_a_whole_step_and_other_devices_have_none(decoder):
    assert whole_keys(PARTS) == []
    assert not set(sufficient_keys(WHOLE, decoder.layer_groups)) & set(whole_keys(WHOLE))
