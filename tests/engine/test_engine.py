"""The facade and the device thread, over real steps."""

import asyncio
import threading
import time

import pytest

from service.engine import loop
from service.engine.device_thread import Stop
from service.engine.loop import BURST_ITERATIONS, Loop
from service.engine.request import BACKGROUND_PRIORITY, FinishReason, Request, Sampling
from service.engine.schedule.device_turns import DeviceTurns
from service.engine.schedule.page_pool import PageIntegrityError
from service.engine.shapes import StepKind
from service.errors import Draining, EngineError, EngineStopped, Overloaded, QueueTimeout
from service.observability.clock import QueueDeadline
from service.observability.model_metrics import ModelMetrics
from tests.engine.conftest import SHAPES
from tests.engine.schedule.scheduling import make_scheduler

GREEDY = Sampling(temperature=0.0)


async def read(stream) -> tuple[list[int], FinishReason | None]:
    token_ids, reason = [], None
    async for event in stream:
        token_ids += event.token_ids
        reason = event.finish_reason
    return token_ids, reason


def submit(engine, name: str, prompt=(2, 3), max_tokens=10, **options):
    return engine.submit(Request(name, tuple(prompt), max_tokens, **{"sampling": GREEDY} | options))


def test_requests_beyond_the_slots_all_get_their_own_text(engine, model):
    async def main():
        prompts = [tuple(range(i + 1, i + 2 + i % 20)) for i in range(30)]
        streams = [submit(engine, str(i), prompt) for i, prompt in enumerate(prompts)]
        outputs = await asyncio.gather(*(read(stream) for stream in streams))
        assert outputs == [(model.expected(prompt, 10), FinishReason.LENGTH) for prompt in prompts]

    asyncio.run(main())
    assert engine.num_open == 0


def test_a_second_request_joins_while_the_first_runs(engine, model):
    async def main():
        first = submit(engine, "first", max_tokens=40)
        iterator = aiter(first)
        begun = await anext(iterator)
        second = await read(submit(engine, "second", max_tokens=3))
        assert second[0] == model.expected((2, 3), 3)
        events = [begun, *[event async for event in iterator]]
        assert events[-1].finish_reason is FinishReason.LENGTH
        told = [token_id for event in events for token_id in event.token_ids]
        assert told == model.expected((2, 3), 40)

    asyncio.run(main())


def test_what_is_read_within_a_few_rounds_of_the_event_loop_shares_the_first_step(start_engine, runner, monkeypatch):
    monkeypatch.setattr(loop, "BURST_PATIENCE_S", 10)  # on a busy machine, too
    metrics = ModelMetrics()
    engine = start_engine(runner, metrics)

    async def main():
        first = submit(engine, "first")
        for _ in range(BURST_ITERATIONS - 1):
            time.sleep(0.001)  # so that the device thread would have begun
            await asyncio.sleep(0)
        second = submit(engine, "second", prompt=(4, 5))
        await asyncio.gather(read(first), read(second))

    asyncio.run(main())
    assert metrics.registry.get_sample_value("levserve_engine_steps_total", {"kind": StepKind.PREFILL}) == 1


async def until_all_pages_are_free(metrics):
    while metrics.registry.get_sample_value("levserve_kv_cache_usage_perc") > 0:
        await asyncio.sleep(0.001)


def test_an_abort_frees_what_the_request_held(start_engine, runner):
    metrics = ModelMetrics()
    engine = start_engine(runner, metrics)

    async def main():
        stream = submit(engine, "a", max_tokens=40)
        await anext(aiter(stream))
        stream.abort()
        stream.abort()
        assert [event async for event in stream] == []
        await until_all_pages_are_free(metrics)

    asyncio.run(asyncio.wait_for(main(), 5))


def test_one_request_too_many_is_refused_with_the_limit(runner, start_engine):
    engine = start_engine(runner, max_requests=2)

    async def main():
        streams = [submit(engine, str(i)) for i in range(2)]
        with pytest.raises(Overloaded) as refusal:
            submit(engine, "third")
        assert (refusal.value.running, refusal.value.limit) == (2, 2)
        await asyncio.gather(*(read(stream) for stream in streams))
        await read(submit(engine, "later"))

    asyncio.run(main())


def test_a_request_that_waits_too_long_is_ended_before_a_step_runs_for_it_and_one_that_runs_is_not(
    start_engine, runner
):
    metrics = ModelMetrics()
    engine = start_engine(runner, metrics)

    async def main():
        for wait_s in (0.05, 1, 20):  # a busy machine may not begin within the first
            over = QueueDeadline(time.perf_counter() + wait_s, 0.5)
            names = [f"{i} of {wait_s}" for i in range(SHAPES.num_slots)]
            running = [submit(engine, name, max_tokens=40, queue_deadline=over) for name in names]
            begun = await asyncio.gather(*(anext(aiter(stream)) for stream in running), return_exceptions=True)
            if not any(isinstance(first, QueueTimeout) for first in begun):
                break
            began = [stream for stream, first in zip(running, begun, strict=True) if not isinstance(first, Exception)]
            await asyncio.gather(*map(read, began))
        waiting = submit(engine, "waiting", queue_deadline=QueueDeadline(time.perf_counter(), 0.5))
        with pytest.raises(QueueTimeout, match=r"QUEUE_TIMEOUT = 0\.5 s"):
            await read(waiting)
        assert waiting.clock.scheduled_s is None
        ends = [await read(stream) for stream in running]
        assert [len(first.token_ids) + len(rest[0]) for first, rest in zip(begun, ends, strict=True)] == [40] * 3

    asyncio.run(main())
    assert engine.num_open == 0


def test_requests_of_batches_do_not_take_the_places_of_clients(runner, start_engine):
    engine = start_engine(runner, max_requests=1)

    async def main():
        of_batch = [submit(engine, f"b{i}", priority=BACKGROUND_PRIORITY) for i in range(3)]
        of_client = submit(engine, "client")
        with pytest.raises(Overloaded) as refusal:
            submit(engine, "second")
        assert (refusal.value.running, refusal.value.limit) == (1, 1)
        of_batch.append(submit(engine, "b3", priority=BACKGROUND_PRIORITY))
        await asyncio.gather(*(read(stream) for stream in (*of_batch, of_client)))
        await read(submit(engine, "later"))

    asyncio.run(main())


class FailingRunner:
    """A device that fails at one step."""

    def __init__(self, runner, failing_step: int) -> None:
        self._runner, self._left = runner, failing_step

    may_wait = False
    waited_for_compile_s = 0.0

    def available_steps(self):
        return self._runner.available_steps()

    def dispatch(self, plan, read_previous):
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("device lost")
        return self._runner.dispatch(plan, read_previous)


class HangingStep:
    """A step that comes back once it may."""

    def __init__(self, step, may_end) -> None:
        self._step, self._may_end = step, may_end
        self.read_logprobs = step.read_logprobs

    def read(self):
        self._may_end.wait()
        return self._step.read()


class HangingRunner(FailingRunner):
    """A device whose step does not come back until the test lets it."""

    def __init__(self, runner) -> None:
        super().__init__(runner, 1000)
        self.may_end = threading.Event()

    def dispatch(self, plan, read_previous):
        return HangingStep(super().dispatch(plan, read_previous), self.may_end)


def test_open_requests_end_even_while_a_step_hangs(runner, start_engine):
    hanging = HangingRunner(runner)
    engine = start_engine(hanging)

    async def main():
        reading = [asyncio.create_task(read(submit(engine, str(i), max_tokens=30))) for i in range(2)]
        assert engine.step_wait_s == 0
        while engine.step_wait_s < 0.05:
            await asyncio.sleep(0.01)
        engine.cut(Draining)
        for outcome in await asyncio.gather(*reading, return_exceptions=True):
            assert isinstance(outcome, Draining)
        assert engine.num_open == 0

    try:
        asyncio.run(asyncio.wait_for(main(), 20))
    finally:
        hanging.may_end.set()


def test_a_failure_of_the_device_reaches_every_open_stream_and_is_told_once(runner, start_engine):
    failures = []
    engine = start_engine(FailingRunner(runner, 5), on_failure=lambda: failures.append(time.time()))

    async def main():
        streams = [submit(engine, str(i), max_tokens=30) for i in range(5)]
        for outcome in await asyncio.gather(*(read(s) for s in streams), return_exceptions=True):
            assert isinstance(outcome, EngineError)
        with pytest.raises(EngineStopped):
            submit(engine, "late")

    asyncio.run(asyncio.wait_for(main(), 10))
    engine.stop()
    assert len(failures) == 1
    assert not engine.is_live


def test_a_page_that_was_lost_ends_the_device_thread_as_soon_as_it_is_idle(runner):
    scheduler = make_scheduler()
    scheduler.pages.allocate(1)
    loop = Loop(scheduler, runner, ModelMetrics(), DeviceTurns().join())
    loop.inbox.put(Stop())  # for a loop that does not notice
    with pytest.raises(PageIntegrityError, match="15 free"):
        loop.run()
    assert "PageIntegrityError" in str(loop.error)


def test_the_moment_of_the_first_token_is_kept(runner, start_engine):
    engine = start_engine(runner)
    assert engine.first_answer_s is None
    began_s = time.monotonic()
    engine.generate([Request("first", (2, 3), 4, GREEDY)])
    first_s = engine.first_answer_s
    assert began_s < first_s < time.monotonic()
    engine.generate([Request("first", (2, 3), 4, GREEDY)])
    assert engine.first_answer_s == first_s


def test_the_metrics_count_what_happened(runner, start_engine):
    metrics = ModelMetrics()
    engine = start_engine(runner, metrics)

    async def main():
        # A salt of its own: what an earlier test left in the pages must not be found.
        await read(submit(engine, "a", prompt=range(1, 12), max_tokens=5, cache_salt=b"metrics"))

    asyncio.run(main())
    values = {sample.name: sample.value for family in metrics.registry.collect() for sample in family.samples}
    assert values["levserve_prompt_tokens_total"] == 11
    assert values["levserve_generation_tokens_total"] == 5
    assert values["levserve_time_to_first_token_seconds_count"] == 1
    assert values["levserve_inter_token_latency_seconds_count"] == 4
    assert values["levserve_request_success_total"] == 1
    assert values["levserve_prefix_cache_queries_total"] == 11
    assert values["levserve_prefix_cache_hits_total"] == 0
    assert values["levserve_request_prompt_tokens_sum"] == 11
    assert values["levserve_request_generation_tokens_sum"] == 5
    assert values["levserve_iteration_tokens_total_sum"] >= 11 + 4
    for span in ("queue", "prefill", "decode", "inference"):
        assert values[f"levserve_request_{span}_time_seconds_count"] == 1
    times_s = [values[f"levserve_request_{span}_time_seconds_sum"] for span in ("queue", "prefill", "decode")]
    assert sum(times_s) == pytest.approx(values["levserve_e2e_request_latency_seconds_sum"])
    assert values["levserve_request_time_per_output_token_seconds_sum"] == pytest.approx(times_s[2] / 4)
    assert values["levserve_cache_config_info"] == 1


def test_a_shared_beginning_is_found_and_told_and_changes_nothing(engine, model):
    async def main():
        prompt = tuple(range(1, 22))
        for expected_found in (0, 20):
            [first, *rest] = [event async for event in submit(engine, "a", prompt, max_tokens=5)]
            assert first.num_cached_tokens == expected_found
            token_ids = [token_id for event in (first, *rest) for token_id in event.token_ids]
            assert token_ids == model.expected(prompt, 5)

    asyncio.run(main())


def test_a_script_waits_for_the_whole(engine, model):
    prompts = [(5, 6), (7, 8, 9)]
    requests = [Request(str(prompt), prompt, 6, GREEDY) for prompt in prompts]
    results = engine.generate(requests)
    assert [list(result.token_ids) for result in results] == [model.expected(prompt, 6) for prompt in prompts]
    assert {result.finish_reason for result in results} == {FinishReason.LENGTH}
