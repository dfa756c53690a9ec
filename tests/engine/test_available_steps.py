"""An engine whose start is still compiling: it serves every request with the steps that are there."""

import asyncio
import contextlib
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.hand_counted import HandCountedModel
from service.compile.aot import compile_programs
from service.compile.lazy import BuildPlan, LazyExecutables
from service.engine.request import Request, Sampling
from service.engine.runner import Runner
from service.engine.shapes import Bucket, EngineShapes, available_steps, sufficient_buckets
from service.engine.steps.keys import (
    compile_order,
    program_keys,
    step_keys,
    sufficient_keys,
)
from service.engine.steps.programs import engine_programs

SIZES = st.integers(1, 6).map(lambda power: 2**power)


@st.composite
def engine_shapes(draw):
    page_size, num_slots = draw(SIZES), draw(st.integers(1, 33))
    max_model_len = page_size * draw(st.integers(1, 400))
    return EngineShapes(
        num_slots=num_slots,
        num_pages=num_slots * max_model_len // page_size,
        page_size=page_size,
        max_model_len=max_model_len,
        max_prefill_tokens=draw(st.sampled_from([8, 64, 100, 512])),
        row_tokens=page_size * draw(st.integers(1, 4)),
        skips_padding=draw(st.booleans()),
    )


@given(engine_shapes(), st.data())
def test_whatever_is_compiled_there_is_a_step_for_every_chunk_that_is_cut_and_for_every_batch(shapes, data):
    also = data.draw(st.sets(st.sampled_from(shapes.buckets)))
    compiled = also | set(sufficient_buckets(shapes))
    steps = available_steps(shapes, compiled)
    needed = Bucket(data.draw(st.integers(0, shapes.num_slots)), data.draw(st.integers(0, steps.num_rows)))
    assert shapes.smallest(steps.buckets, needed) in compiled


@given(engine_shapes())
def test_once_all_are_compiled_the_steps_are_those_of_the_shapes(shapes):
    steps = available_steps(shapes, set(shapes.buckets))
    assert steps.is_complete
    assert set(steps.buckets) == set(shapes.buckets)
    assert steps.num_rows == shapes.row_counts[-1]


def test_steps_appear_as_they_are_compiled():
    shapes = EngineShapes(num_slots=4, num_pages=256, page_size=16, max_model_len=1024, max_prefill_tokens=128)
    compiled = set(sufficient_buckets(shapes))
    steps = available_steps(shapes, compiled)
    assert (steps.num_rows, steps.is_complete) == (1, False)
    assert shapes.smallest(steps.buckets, Bucket(1, 0)) == Bucket(4, 0)
    compiled.add(Bucket(4, 2))
    steps = available_steps(shapes, compiled)
    assert (steps.num_rows, steps.is_complete) == (2, False)
    compiled.update(shapes.buckets)
    assert available_steps(shapes, compiled).is_complete


class GatedMaking:
    """Hands out executables that were compiled before: some at once, the others when the gate opens."""

    def __init__(self, executables, at_once):
        self.gate = threading.Event()
        self.asked = []
        self._executables, self._at_once = executables, set(at_once)

    def __call__(self, name):
        self.asked.append(name)
        if name not in self._at_once:
            assert self.gate.wait(60)
        return self._executables[name]


def names_of(keys):
    return list(map(str, keys))


@contextlib.contextmanager
def begun_start(gated, model, shapes):
    """Begin a start that has compiled what suffices, and yield its runner."""
    names = names_of(compile_order(shapes, model.layer_groups))
    plan = BuildPlan(gated, num_first_threads=2, num_rest_threads=2, builds_on_lookup=False)
    sufficient = names_of(sufficient_keys(shapes, model.layer_groups))
    lazy = LazyExecutables(names, len(sufficient), plan)
    for name in sufficient:
        lazy[name]
    runner = Runner(shapes, model.layer_groups, {}, lazy)
    yield runner, lazy
    gated.gate.set()
    lazy.wait()


@pytest.fixture
def gated(executables, model, shapes):
    return GatedMaking(executables, names_of(sufficient_keys(shapes, model.layer_groups)))


@pytest.fixture
def starting(gated, model, shapes):
    with begun_start(gated, model, shapes) as begun:
        yield begun


def requests(prompts, num_tokens, **options):
    return [
        Request(str(i), tuple(prompt), num_tokens, Sampling(temperature=0.0), **options)
        for i, prompt in enumerate(prompts)
    ]


PROMPTS = [list(range(1, 1 + length)) for length in (1, 3, 8, 17, 30, 40)]


def test_every_request_is_served_by_what_suffices_and_by_more_as_it_comes(starting, gated, model, start_engine):
    runner, lazy = starting
    engine = start_engine(runner)
    expected = [tuple(model.expected(tuple(prompt), 8)) for prompt in PROMPTS]
    assert [g.token_ids for g in engine.generate(requests(PROMPTS, 8))] == expected
    assert not runner.available_steps().is_complete
    assert runner.waited_for_compile_s == 0
    gated.gate.set()
    lazy.wait()
    assert [g.token_ids for g in engine.generate(requests(PROMPTS, 8))] == expected
    assert runner.available_steps().is_complete


@pytest.mark.grid
def test_what_traffic_would_use_is_compiled_next(start_engine):
    model = HandCountedModel()
    shapes = EngineShapes(num_slots=2, num_pages=24, page_size=4, max_model_len=48, max_prefill_tokens=32, row_tokens=4)
    compiled = compile_programs(engine_programs(model, shapes, {}), num_threads=2)
    sufficient = names_of(sufficient_keys(shapes, model.layer_groups))
    gated = GatedMaking({name: program.executable for name, program in compiled.items()}, sufficient)
    with begun_start(gated, model, shapes) as (runner, lazy):
        lazy.build_rest()  # both threads wait at the gate, with what comes first
        engine = start_engine(runner, shapes=shapes)
        engine.generate(requests([[*range(1, 14)]], 1))
        gated.gate.set()
        lazy.wait()
        engine.stop()
    wanted = shapes.smallest(shapes.buckets, Bucket(0, 4))
    assert wanted not in sufficient_buckets(shapes)
    assert gated.asked[len(sufficient) + 2] in names_of(step_keys(wanted, model.layer_groups, shapes))


def test_a_request_that_needs_a_missing_executable_waits_for_that_one_and_is_told(
    starting, gated, executables, model, start_engine
):
    runner, _ = starting
    engine = start_engine(runner)

    async def main():
        stream = engine.submit(*requests([[1, 2, 3]], 2, num_prompt_logprobs=0))
        asyncio.get_running_loop().call_later(0.3, gated.gate.set)
        events = [event async for event in stream]
        return events, stream.waited_for_compile_s

    events, waited_s = asyncio.run(main())
    assert sum((event.token_ids for event in events), ()) == tuple(model.expected((1, 2, 3), 2))
    assert 0.05 < waited_s < 30


def test_running_every_executable_on_padding_changes_nothing_for_sequences_on_their_way(runner, model, start_engine):
    engine = start_engine(runner)
    expected = [tuple(model.expected(tuple(prompt), 8)) for prompt in PROMPTS]
    answers = []
    asking = threading.Thread(target=lambda: answers.extend(engine.generate(requests(PROMPTS, 8)) for _ in range(3)))
    asking.start()
    while asking.is_alive():
        for run in runner.padded_steps():
            engine.run_between_steps(run)
    asking.join()
    assert [[g.token_ids for g in generations] for generations in answers] == [expected] * 3


def test_a_call_that_fails_between_steps_is_told_to_its_caller_alone(engine, model):
    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        engine.run_between_steps(fail)
    [generation] = engine.generate(requests([[1, 2]], 4))
    assert generation.token_ids == tuple(model.expected((1, 2), 4))


def test_the_order_of_compiling_has_every_program_once_and_what_suffices_first(model, shapes):
    groups = model.layer_groups
    order = compile_order(shapes, groups)
    assert len(order) == len(set(order))
    assert set(order) == set(program_keys(shapes, groups))
    first = sufficient_keys(shapes, groups)
    assert order[: len(first)] == first
    widest = max(shapes.prompt_buckets)
    wide = [key for key in step_keys(widest, groups, shapes) if key not in first]
    assert order[len(first) : len(first) + len(wide)] == wide
