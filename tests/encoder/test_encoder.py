"""The device thread: requests from several clients, cancelled ones, broken ones, a drain and a failure."""

import asyncio
import threading
import time

import numpy as np
import pytest

from service.encoder.encoder import TextEncoder
from service.encoder.request import EncodeRequest
from service.encoder.shapes import EncoderShapes
from service.errors import Draining, EngineError, EngineStopped, NonFiniteVector, Overloaded, QueueTimeout
from service.observability.clock import Clock, QueueDeadline
from service.observability.model_metrics import ModelMetrics

BROKEN = 13  # a text with this token has no vector


class HeldRunner:
    """Returns the sum and the length of each text, once it is let go; records the plans."""

    def __init__(self):
        self.shapes = EncoderShapes(max_model_len=16, max_step_tokens=32)
        self.plans = []
        self.go = threading.Event()
        self.dispatched = threading.Semaphore(0)
        self.go.set()
        self.error = None

    def usable_buckets(self):
        return self.shapes.buckets

    def dispatch(self, plan):
        self.plans.append(plan)
        self.dispatched.release()
        if self.error is not None:
            raise self.error
        rows = [[sum(text.token_ids), len(text.token_ids)] for text in plan.texts]
        found = np.array(rows, np.float32)
        found[[BROKEN in text.token_ids for text in plan.texts]] = np.nan
        return found

    def read(self, vectors, num_texts):
        self.go.wait()
        return vectors[:num_texts]

    def read_tokens(self, vectors, plan):
        return {
            place: np.where(np.array(text.token_ids) == BROKEN, np.nan, text.token_ids).astype(np.float32)[:, None]
            for place, text in enumerate(plan.texts)
            if text.request.wants_tokens
        }


class Running:
    """An encoder over a HeldRunner."""

    def __init__(self, **options):
        self.runner, self.metrics, self.failures = HeldRunner(), ModelMetrics(), []
        self.encoder = TextEncoder(
            self.runner, self.metrics, on_failure=lambda: self.failures.append(1), **{"max_requests": 8} | options
        )
        self.encoder.start()

    def submit(self, name, *texts, **options):
        return self.encoder.submit(EncodeRequest(name, texts, **options))


@pytest.fixture
def running():
    made = Running()
    yield made
    made.runner.go.set()
    made.encoder.stop()


async def settled(condition):
    while not condition():
        await asyncio.sleep(0.001)


def test_vectors_come_in_the_order_of_the_texts(running):
    async def ask():
        return await running.submit("a", (1, 2, 3), (9,), (4, 4))

    np.testing.assert_array_equal(asyncio.run(ask()), [[6, 3], [9, 1], [8, 2]])


def test_texts_that_arrive_while_a_step_runs_share_the_next_one(running):
    async def ask():
        running.runner.go.clear()
        futures = [running.submit("first", (1,))]
        await asyncio.to_thread(running.runner.dispatched.acquire)
        futures += [running.submit(f"{number}", (number,)) for number in range(4)]
        running.runner.go.set()
        return await asyncio.gather(*futures)

    asyncio.run(ask())
    assert [len(plan.texts) for plan in running.runner.plans] == [1, 4]


def test_a_full_step_is_dispatched_while_another_one_runs(running):
    async def ask():
        running.runner.go.clear()
        future = running.submit("crowd", *[(1,) * 16] * 6)
        for _ in range(2):
            await asyncio.to_thread(running.runner.dispatched.acquire)
        running.runner.go.set()
        return await future

    assert len(asyncio.run(ask())) == 6
    assert [plan.num_tokens for plan in running.runner.plans] == [32, 32, 32]


def test_a_text_without_a_finite_vector_fails_its_request_and_no_other(running):
    async def ask():
        running.runner.go.clear()
        futures = [
            running.submit("good", (1,)),
            running.submit("broken", (1,), (BROKEN,)),
            running.submit("fine", (2,)),
        ]
        running.runner.go.set()
        return await asyncio.gather(*futures, return_exceptions=True)

    good, broken, fine = asyncio.run(ask())
    assert (good.tolist(), fine.tolist()) == ([[1, 1]], [[2, 1]])
    assert isinstance(broken, NonFiniteVector)
    assert broken.index == 1
    assert running.encoder.num_open == 0


def test_the_texts_of_a_cancelled_request_are_not_encoded(running):
    async def ask():
        running.runner.go.clear()
        first = running.submit("first", (1,))
        await asyncio.to_thread(running.runner.dispatched.acquire)
        cancelled = running.submit("cancelled", *[(2,)] * 3)
        last = running.submit("last", (3,))
        cancelled.cancel()
        await settled(lambda: running.encoder.num_open == 2)
        running.runner.go.set()
        return await asyncio.gather(first, last)

    asyncio.run(ask())
    encoded = [text.request.id for plan in running.runner.plans for text in plan.texts]
    assert encoded == ["first", "last"]


def test_more_requests_than_allowed_are_refused():
    running = Running(max_requests=1)

    async def ask():
        running.runner.go.clear()
        future = running.submit("a", (1,))
        with pytest.raises(Overloaded):
            running.submit("b", (1,))
        running.runner.go.set()
        await future
        await running.submit("c", (1,))

    asyncio.run(ask())
    running.encoder.stop()


def test_open_requests_end_even_while_a_step_hangs(running):
    async def ask():
        running.runner.go.clear()
        begun = running.submit("begun", (1,))
        await asyncio.to_thread(running.runner.dispatched.acquire)
        waiting = running.submit("waiting", (2,))
        running.encoder.cut(Draining)
        for future in (begun, waiting):
            with pytest.raises(Draining):
                await future
        running.runner.go.set()
        return await running.submit("later", (3,))

    assert asyncio.run(ask()).tolist() == [[3, 1]]


def test_a_failure_of_the_device_reaches_every_request_and_stops_the_encoder():
    running = Running()
    running.runner.error = RuntimeError("the device is gone")

    async def ask():
        with pytest.raises(EngineError, match="RuntimeError"):
            await running.submit("a", (1,))
        await settled(lambda: running.failures == [1])
        with pytest.raises(EngineStopped):
            running.submit("b", (1,))

    asyncio.run(ask())


def test_requests_texts_and_steps_are_counted(running):
    async def ask():
        await running.submit("a", (1, 2, 3), (4,))

    asyncio.run(ask())
    value = running.metrics.registry.get_sample_value
    assert value("levserve_engine_steps_total", {"kind": "encode"}) == 1
    assert value("levserve_prompt_tokens_total") == 4
    assert value("levserve_request_success_total", {"finished_reason": "stop"}) == 1


def test_tokens_and_vectors_share_a_step_and_a_broken_token_fails_its_request_alone(running):
    async def ask():
        running.runner.go.clear()
        first = running.submit("first", (1,))
        await asyncio.to_thread(running.runner.dispatched.acquire)
        asked = [
            running.submit("tokens", (5, 6), (7,), wants_tokens=True),
            running.submit("broken", (5,), (BROKEN, 2), wants_tokens=True),
            running.submit("vector", (5, 6)),
        ]
        running.runner.go.set()
        return await asyncio.gather(first, *asked, return_exceptions=True)

    _, tokens, broken, vector = asyncio.run(ask())
    assert len(running.runner.plans) == 2
    np.testing.assert_array_equal(tokens, [[5], [6], [7]])
    assert isinstance(broken, NonFiniteVector)
    assert broken.index == 1
    np.testing.assert_array_equal(vector, [[11, 2]])


def test_a_request_that_waits_too_long_is_ended_and_never_encoded(running):
    async def ask():
        running.runner.go.clear()
        first = running.submit("first", (1,))
        await asyncio.to_thread(running.runner.dispatched.acquire)
        over = QueueDeadline(time.perf_counter() + 0.01, 0.5)
        waiting = running.submit("waiting", (2,), queue_deadline=over)
        begun = running.submit("begun", (3,), queue_deadline=over, clock=Clock(0.0, scheduled_s=0.0))
        with pytest.raises(QueueTimeout, match=r"QUEUE_TIMEOUT = 0\.5 s"):
            await waiting
        running.runner.go.set()
        await asyncio.gather(first, begun)

    asyncio.run(ask())
    assert [text.request.id for plan in running.runner.plans for text in plan.texts] == ["first", "begun"]
    assert running.encoder.num_open == 0


def test_the_wait_for_a_first_step_is_noted(running):
    request = EncodeRequest("a", ((1,), (2,)))

    async def ask():
        await running.encoder.submit(request)

    asyncio.run(ask())
    assert request.clock.submitted_s <= request.clock.scheduled_s <= time.perf_counter()
    assert running.metrics.registry.get_sample_value("levserve_request_queue_time_seconds_count") == 1
