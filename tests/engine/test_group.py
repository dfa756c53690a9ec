"""Several engines behind one: which of them a request gets, and what a failed or hung one takes with it."""

import asyncio
import threading

import pytest

from service.engine.engine import Engine
from service.engine.group import EngineGroup
from service.engine.request import Request, Sampling
from service.engine.runner import Runner
from service.engine.schedule import pages
from service.engine.schedule.pages import page_key
from service.errors import EngineStopped, ServiceError
from service.observability.model_metrics import ModelMetrics
from tests.engine.conftest import SHAPES
from tests.engine.running import collect, run, tokens_of

GREEDY = Sampling(temperature=0.0)


class Breakable:
    """A runner whose next step fails, or does not come back."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.fails = False
        self.goes_on = threading.Event()
        self.goes_on.set()

    def __getattr__(self, name):
        return getattr(self._runner, name)

    def dispatch(self, plan, read_previous):
        if self.fails:
            raise RuntimeError("broken")
        return Waiting(self._runner.dispatch(plan, read_previous), self.goes_on)


class Waiting:
    def __init__(self, step, goes_on) -> None:
        self._step, self._goes_on = step, goes_on

    def read(self):
        self._goes_on.wait()
        return self._step.read()

    def read_logprobs(self):
        return self._step.read_logprobs()


class Group:
    """Two engines, and the runners that they have had."""

    def __init__(self, executables, shapes, groups, *, max_step_s=None) -> None:
        self.runners: list[Breakable] = []
        self.has_failed = threading.Event()
        self.can_make = True
        self.metrics = ModelMetrics()

        def make(number, on_failure):
            if not self.can_make:
                raise RuntimeError("no memory")
            self.runners.append(Breakable(Runner(shapes, groups, {}, executables)))
            return Engine(self.runners[-1], shapes, self.metrics, max_requests=32, on_failure=on_failure, number=number)

        self.engine = EngineGroup(2, make, self.has_failed.set, max_step_s=max_step_s)
        self.engine.start()


@pytest.fixture
def start_group(executables, shapes, model):
    groups = []

    def start(**options):
        groups.append(Group(executables, shapes, model.layer_groups, **options))
        return groups[-1]

    yield start
    for group in groups:
        for runner in group.runners:
            runner.goes_on.set()
        group.engine.stop(10)
        group.engine.check_integrity()


def request(name: str, prompt_ids=(2, 3), max_tokens: int = 4, **fields) -> Request:
    return Request(name, tuple(prompt_ids), max_tokens, GREEDY, **fields)


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


def test_requests_are_shared_out_and_each_engine_computes_the_same(start_group, model):
    group = start_group()
    requests = [request(f"r{i}", (2, 3 + i), 6) for i in range(12)]
    answers = run(group.engine, *requests)
    assert [tokens_of(a) for a in answers] == [model.expected(r.prompt_ids, 6) for r in requests]
    assert all(engine.first_answer_s is not None for engine in group.engine.engines)


def test_a_conversation_goes_on_where_it_is_cached(start_group, model):
    group = start_group()
    conversations = [[2 + i, *range(20)] for i in range(4)]

    async def talk():
        cached = []
        for turn in range(3):
            ends = [await collect(group.engine, request(f"{turn}-{i}", known)) for i, known in enumerate(conversations)]
            for i, events in enumerate(ends):
                conversations[i] = [*conversations[i], *tokens_of(events)]
            cached.append([events[0].num_cached_tokens for events in ends])
        return cached

    first, second, third = asyncio.run(talk())
    page = SHAPES.page_size
    assert first == [0] * 4
    assert all(tokens >= 21 // page * page for tokens in second)
    assert all(tokens >= 25 // page * page for tokens in third)


def test_a_short_prefix_that_all_share_does_not_keep_an_engine_idle(start_group):
    group = start_group()

    async def crowd():
        await collect(group.engine, request("first", range(16)))
        streams = [group.engine.submit(request(f"r{i}", [*range(16), i], 30)) for i in range(4)]
        spread = [engine.num_open for engine in group.engine.engines]
        for stream in streams:
            stream.abort()
        return spread

    assert min(asyncio.run(crowd())) >= 1


def test_an_engine_that_fails_takes_only_its_own_requests_along_and_is_replaced(start_group, model):
    group = start_group()

    async def main():
        kept, lost = request("kept", (2, 3), 40), request("lost", (5, 7), 40)
        streams = {r.id: group.engine.submit(r) for r in (kept, lost)}
        assert [engine.num_open for engine in group.engine.engines] == [1, 1]
        group.runners[1].fails = True
        results = await asyncio.gather(*(collect_stream(s) for s in streams.values()), return_exceptions=True)
        await until(lambda: len(group.engine.engines) == 2)
        after = await asyncio.gather(*(collect(group.engine, request(f"after{i}", (2, 3), 6)) for i in range(4)))
        return results, after

    (kept, lost), after = asyncio.run(main())
    assert tokens_of(kept) == model.expected((2, 3), 40)
    assert isinstance(lost, ServiceError)
    assert [tokens_of(events) for events in after] == [model.expected((2, 3), 6)] * 4
    assert len(group.runners) == 3
    assert not group.has_failed.is_set()


async def collect_stream(stream):
    return [event async for event in stream]


def test_an_engine_that_hangs_ends_its_own_requests_and_is_replaced(start_group, model):
    group = start_group(max_step_s=0.5)

    async def main():
        streams = [group.engine.submit(request(f"r{i}", (2, 3 + i), 20)) for i in range(2)]
        group.runners[0].goes_on.clear()
        results = await asyncio.gather(*map(collect_stream, streams), return_exceptions=True)
        await until(lambda: len(group.engine.engines) == 2)
        return results, await collect(group.engine, request("after"))

    (lost, kept), after = asyncio.run(main())
    assert isinstance(lost, EngineStopped)
    assert tokens_of(kept) == model.expected((2, 4), 20)
    assert tokens_of(after) == model.expected((2, 3), 4)


def test_the_process_ends_once_no_engine_is_left(start_group):
    group = start_group()
    group.can_make = False

    async def main():
        for runner in group.runners:
            runner.fails = True
        for name in ("a", "b"):
            with pytest.raises(ServiceError):
                await collect(group.engine, request(name))
        await until(group.has_failed.is_set)
        with pytest.raises(EngineStopped):
            group.engine.submit(request("late"))

    asyncio.run(main())
    assert not group.engine.is_live


def test_all_requests_end_with_the_error_of_a_drain(start_group):
    group = start_group()

    async def main():
        streams = [group.engine.submit(request(f"r{i}", (2, 3 + i), 40)) for i in range(4)]
        await asyncio.sleep(0.01)
        group.engine.cut(lambda: EngineStopped("over"))
        return await asyncio.gather(*map(collect_stream, streams), return_exceptions=True)

    assert all(isinstance(result, EngineStopped) for result in asyncio.run(main()))


def test_each_engine_has_its_series_and_the_load_is_their_sum(start_group):
    group = start_group()
    run(group.engine, *(request(f"r{i}", (2, 3 + i)) for i in range(4)))
    assert group.metrics.load.num_slots == 2 * SHAPES.num_slots
    assert group.metrics.load.num_pages == 2 * SHAPES.num_pages
    running = {
        sample.labels["engine"]
        for family in group.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "levserve_num_requests_running"
    }
    assert running == {"0", "1"}


def test_a_runner_whose_engine_is_replaced_leaves_no_memory(executables, shapes, model):
    runner = Runner(shapes, model.layer_groups, {}, executables)
    runner.warm()
    leaves = runner.cache_leaves()
    runner.delete_state()
    runner.delete_state()  # a second time does nothing
    assert all(leaf.is_deleted() for leaf in leaves)


def test_a_key_of_a_prompt_is_computed_once_on_the_event_loop(start_group, monkeypatch):
    group, here, computed = start_group(), threading.get_ident(), []
    prompt = range(4 * SHAPES.page_size + 1)

    def noted(previous, content):
        if threading.get_ident() == here:  # not on a device thread
            computed.append(content)
        return page_key(previous, content)

    async def main():
        streams = [group.engine.submit(request(name, prompt)) for name in ("first", "second")]
        await asyncio.gather(*map(collect_stream, streams))  # both engines know the prompt now
        monkeypatch.setattr(pages, "page_key", noted)
        await collect(group.engine, request("third", prompt))

    asyncio.run(main())
    assert len(computed) == 1 + 4  # the root's
