"""Thousands of random requests with aborts through the device thread's own loop: each its text, and no page is lost."""

import asyncio
import queue
import random
from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.hand_counted import HandCountedModel
from service.engine.device_thread import Abort, Stop, Submission
from service.engine.loop import Loop
from service.engine.request import FinishReason, Request, Sampling, TokenEvent, TokenStream
from service.engine.schedule.chunking import Chunking
from service.engine.schedule.device_turns import DeviceTurns
from service.engine.schedule.proposers import DraftModel
from service.engine.schedule.scheduler import Scheduler
from service.engine.schedule.speculation import Speculation
from service.engine.schedule.twin_pages import TwinPages
from service.engine.shapes import EngineShapes, available_steps, sufficient_buckets
from service.errors import NonFiniteLogits
from service.observability.model_metrics import ModelMetrics
from tests.engine.drafting import Oracle
from tests.engine.host_device import HostDevice
from tests.engine.test_engine import read, until_all_pages_are_free

NUM_SLOTS, NUM_PAGES, PAGE_SIZE = 6, 20, 4
VOCAB = 97
BREAKING_SUM = 500
SHAPES = EngineShapes(
    num_slots=NUM_SLOTS,
    num_pages=NUM_PAGES,
    page_size=PAGE_SIZE,
    max_model_len=NUM_PAGES * PAGE_SIZE,
    max_prefill_tokens=16,
    row_tokens=4,
    prefill_step_cost_tokens=8,
)
MAX_OPEN = 24
MAX_DRAFTS = 3
CUT_OFF = object()  # in place of a reason: the client had gone


class CountingScheduler(Scheduler):
    num_checks = 0

    def check_integrity(self):
        self.num_checks += 1
        super().check_integrity()


class CallingLoop(asyncio.AbstractEventLoop):
    """An event loop that calls at once, so that one seed gives one course of events."""

    def call_soon(self, callback, *args, context=None):
        callback(*args)

    call_soon_threadsafe = call_soon


class Reader(TokenStream):
    """What one client was told."""

    def __init__(self, request, loop):
        super().__init__(loop, abort=lambda: None, on_end=lambda: None)
        self.request = request
        self.token_ids, self.reason, self.num_cached_tokens = [], None, 0

    def put(self, event):
        assert self.reason in (None, CUT_OFF), "nothing comes after the end"
        if isinstance(event, NonFiniteLogits):
            event = TokenEvent((), FinishReason.ERROR)
        elif isinstance(event, Exception):
            raise event
        self.token_ids += event.token_ids
        self.num_cached_tokens += event.num_cached_tokens
        self.reason = self.reason or event.finish_reason


class RandomClients(queue.SimpleQueue):
    """The loop's inbox and its device: between two steps clients come, go, or leave the engine until it is idle."""

    def __init__(self, device, scheduler, num_requests, seed):
        self.readers = []
        self.num_waits = 0
        self._device = device
        self._num_requests = num_requests
        self._scheduler = scheduler
        self._random = random.Random(seed)
        self._calling = CallingLoop()
        self._beginnings = [self._tokens(4 * i) for i in range(8)]
        self._is_pausing = False
        self._num_plans = 0

    may_wait = False
    waited_for_compile_s = 0.0

    def available_steps(self):
        """Return more and more steps, as a start that compiles has them."""
        self._num_plans += 1
        num_compiled = max(self._num_plans - 20, 0) // 7
        compiled = {*sufficient_buckets(SHAPES), *SHAPES.buckets[:num_compiled]}
        return available_steps(SHAPES, compiled)

    def dispatch(self, plan, read_previous):
        Scheduler.check_integrity(self._scheduler)
        self._come()
        self._go()
        return self._device.dispatch(plan, read_previous)

    def get(self):
        """Answer the loop that has nothing to do."""
        self.num_waits += 1
        if self.empty() and len(self.readers) >= self._num_requests:
            return Stop()
        self._is_pausing = False
        if self.empty():
            self._ask()
        return super().get()

    def _come(self):
        self._is_pausing |= self._random.random() < 0.01
        num_open = self._scheduler.num_waiting + self._scheduler.num_running
        if not self._is_pausing and num_open < MAX_OPEN and len(self.readers) < self._num_requests:
            for _ in range(self._random.choice([0, 0, 1, 3])):
                self._ask()

    def _ask(self):
        """Ask once, for up to three continuations of one prompt."""
        draw = self._random
        prompt = (draw.choice(self._beginnings) + self._tokens(draw.randrange(12))) or [1]
        sampling, max_tokens = Sampling(temperature=0.0), draw.randint(1, 16)
        stop_ids, priority = frozenset(self._tokens(draw.randrange(3))), draw.randrange(3)
        salt = draw.choice([b"", b"", b"other"])
        for _ in range(draw.choice([1, 1, 1, 3])):
            name = str(len(self.readers))
            request = Request(name, tuple(prompt), max_tokens, sampling, stop_ids, priority, salt)
            self.readers.append(Reader(request, self._calling))
            self.put(Submission(request, self.readers[-1]))

    def _go(self):
        """Let one of the last ones go, however far it is: waiting, prefilling, running, over."""
        if self.readers and self._random.random() < 0.15:
            reader = self._random.choice(self.readers[-MAX_OPEN:])
            self.put(Abort(reader.request.id))
            if reader.reason is None:
                reader.reason = CUT_OFF

    def _tokens(self, num_tokens):
        return [self._random.randrange(VOCAB) for _ in range(num_tokens)]


def expected(model, request):
    token_ids = model.expected(request.prompt_ids, request.max_tokens)
    total = sum(request.prompt_ids)
    for index, token_id in enumerate(token_ids):
        if total == BREAKING_SUM:
            return token_ids[:index], FinishReason.ERROR
        if token_id in request.stop_ids:
            return token_ids[:index], FinishReason.STOP
        total += token_id
    return token_ids, FinishReason.LENGTH


def speculating(wrong):
    """Return a policy that drafts what is right, but for a share of tokens."""
    model = HandCountedModel(VOCAB)
    oracle = Oracle(lambda sequence: model.expected(sequence.known_ids, MAX_DRAFTS), wrong)
    return Speculation(replace(SHAPES, num_drafts=MAX_DRAFTS), [oracle], is_adaptive=False)


class Foreseeing(DraftModel):
    """A draft model that is right but for a share of tokens, and has places for what it writes, some rows at a time."""

    def __init__(self, wrong, seed=1):
        self.twins = TwinPages(PAGE_SIZE)
        self._model, self._wrong, self._random = HandCountedModel(VOCAB), wrong, random.Random(seed)

    def catch_up(self, sequences):
        caught_up = []
        for sequence in sequences:
            begin, end = self.twins.num_computed(sequence), len(sequence.known_ids) - 1
            if begin < end - 1:
                end = min(begin + 8, end)
                self.twins.write(sequence, begin, end)
                begin = end
            if begin >= len(sequence.known_ids) - 2:
                caught_up.append(sequence)
        return caught_up

    def draft(self, lengths):
        drafts = {}
        for sequence, length in lengths.items():
            known = len(sequence.known_ids)
            assert len(sequence.pages) * PAGE_SIZE >= known + length, "each position has a page"
            tokens = self._model.expected(tuple(sequence.known_ids), length)
            tokens = [(t + (self._random.random() < self._wrong)) % VOCAB for t in tokens]
            self.twins.write(sequence, self.twins.num_computed(sequence), known, tokens[:-1])
            drafts[sequence] = tokens
        return drafts

    def forget(self, sequence):
        self.twins.forget(sequence)


def speculating_by_model(wrong):
    """Return the policy that asks a draft model."""
    return Speculation(replace(SHAPES, num_drafts=MAX_DRAFTS), (), model=Foreseeing(wrong), is_adaptive=False)


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("num_requests", "policy", "wrong"),
    [
        (1_000, None, 0.0),
        (1_000, speculating, 0.2),
        (1_000, speculating_by_model, 0.2),
        *(
            pytest.param(10_000, policy, wrong, marks=pytest.mark.slow)
            for policy, wrong in ((None, 0.0), (speculating, 0.2), (speculating, 1.0), (speculating_by_model, 0.2))
        ),
    ],
)
def test_thousands_of_requests_with_aborts_each_get_their_text_and_leave_every_page_free(num_requests, policy, wrong):
    speculation = None if policy is None else policy(wrong)
    scheduler = CountingScheduler(
        num_slots=NUM_SLOTS,
        num_pages=NUM_PAGES,
        page_size=PAGE_SIZE,
        chunking=Chunking.of(SHAPES),
        speculation=speculation,
    )
    sizes = {"num_slots": NUM_SLOTS, "num_pages": NUM_PAGES, "page_size": PAGE_SIZE, "vocab_size": VOCAB}
    device = HostDevice(**sizes, breaking_sum=BREAKING_SUM)
    clients = RandomClients(device, scheduler, num_requests, seed=5)
    loop = Loop(scheduler, clients, ModelMetrics(), DeviceTurns().join())
    loop.inbox = clients
    loop.run()

    assert scheduler.num_checks == clients.num_waits > num_requests // 100
    assert scheduler.is_idle
    assert scheduler.pages.num_available == NUM_PAGES
    model = HandCountedModel(VOCAB)
    for reader in clients.readers:
        token_ids, reason = expected(model, reader.request)
        if reader.reason is CUT_OFF:
            assert reader.token_ids == token_ids[: len(reader.token_ids)]
        else:
            assert (reader.token_ids, reader.reason) == (token_ids, reason)
    # What must have happened on the way for this to say anything.
    assert scheduler.num_preemptions > num_requests // 10
    assert sum(reader.num_cached_tokens for reader in clients.readers) > num_requests
    reasons = Counter(reader.reason for reader in clients.readers)
    assert reasons[CUT_OFF] > num_requests // 10
    if speculation is not None:
        assert (speculation.num_accepted_tokens > num_requests // 2) == (wrong < 1)
    assert reasons.keys() == {CUT_OFF, FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR}


@pytest.mark.usefixtures("unchecked_types")
def test_clients_that_come_and_go_leave_the_whole_engine_as_it_was(start_engine, runner, model):
    metrics = ModelMetrics()
    engine = start_engine(runner, metrics)

    async def client(draw):
        for _ in range(25):
            prompt = (*range(1, draw.choice([4, 8, 16])), draw.randrange(VOCAB))
            max_tokens = draw.randint(1, 20)
            name = f"{draw.random()}"
            stream = engine.submit(
                Request(name, prompt, max_tokens, Sampling(temperature=0.0), priority=draw.choice([0, 1]))
            )
            if draw.random() < 0.5:
                assert await read(stream) == (model.expected(prompt, max_tokens), FinishReason.LENGTH)
                continue
            token_ids = []
            async for event in stream:
                token_ids += event.token_ids
                if draw.random() < 0.2:
                    stream.abort()
            assert token_ids == model.expected(prompt, max_tokens)[: len(token_ids)]

    async def main():
        await asyncio.gather(*(client(random.Random(seed)) for seed in range(12)))
        await until_all_pages_are_free(metrics)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert engine.num_open == 0
