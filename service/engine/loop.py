"""The device thread: take, plan, dispatch, commit, deliver.

A step is dispatched before the previous one is read, so the device is at work while Python is.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from service.engine.request import FinishReason, Request, StepLogprobs, TokenEvent
from service.engine.schedule.plan import PageCopy, Plan
from service.engine.schedule.scheduler import Scheduler
from service.engine.schedule.sequence import Sequence as RunningSequence
from service.engine.stream import TokenStream
from service.errors import EngineError, NonFiniteLogits
from service.observability.metrics import Metrics

# Requests that are sent together are read one after the other, and a step that begins with the first of them alone
# holds up the others. Within six rounds of the event loop, eight that were sent at once were always there.
BURST_ROUNDS = 6
BURST_PATIENCE_S = 0.02

BROKEN_SCORES = (
    "The model's scores for the next token are NaN or infinite, so none can be chosen. This ends this request only. "
    "The checkpoint's weights or the DTYPE may be at fault; another prompt may work."
)


@runtime_checkable
class StepResult(Protocol):
    """A step under way."""

    def read(self) -> "IntRow":
        """Wait for the step and return one token per row; -1 for one whose scores are no numbers."""
        ...

    def read_logprobs(self) -> StepLogprobs | None:
        """Return the log-probabilities that were asked for, if any were."""
        ...


@runtime_checkable
class IntRow(Protocol):
    """One integer per row, as numpy gives it."""

    def tolist(self) -> list[int]:
        """Return plain integers."""
        ...


@runtime_checkable
class StepRunner(Protocol):
    """What the loop asks of the device."""

    @property
    def has_pages(self) -> bool:
        """Whether pages are there already, for copies."""
        ...

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Start copies between rows and pages, where the kernel keeps rows."""
        ...

    def dispatch(self, plan: Plan) -> StepResult:
        """Start a step and return at once."""
        ...


@dataclass(slots=True)
class Submission:
    """A request on its way in, and its clocks."""

    request: Request
    stream: TokenStream
    submitted_s: float
    last_token_s: float | None = None  # None until the first token


@dataclass(frozen=True, slots=True)
class Abort:
    """A client's wish to stop a request."""

    request_id: str


class Stop:
    """The end of the device thread."""


Message = Submission | Abort | Stop
Delivery = tuple[TokenStream, TokenEvent | EngineError]


class Loop:
    """Runs on the device thread and owns the scheduler; the inbox is its only door."""

    def __init__(self, scheduler: Scheduler, runner: StepRunner, metrics: Metrics) -> None:
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.error: EngineError | None = None  # set once, when the loop has failed
        self.first_token_s: float | None = None  # set once, on the clock of `time.monotonic`
        self._scheduler = scheduler
        self._runner = runner
        self._metrics = metrics
        self._open: dict[str, tuple[RunningSequence, Submission]] = {}
        self._is_stopping = False

    def run(self) -> None:
        """Run until told to stop; a failure is told to every open stream and kept in `error`."""
        try:
            under_way: tuple[Plan, StepResult] | None = None
            while not self._is_stopping:
                self._take(can_wait=under_way is None and self._scheduler.is_idle)
                plan = self._scheduler.plan()
                copies = self._scheduler.take_copies()
                if copies and not self._runner.has_pages:  # making them takes long, so tokens go first
                    self._finish(under_way)
                    under_way = None
                self._runner.copy_pages(copies)
                dispatched = (plan, self._runner.dispatch(plan)) if plan is not None else None
                self._finish(under_way)
                under_way = dispatched
                self._measure(plan)
            self._fail(EngineError("the engine was stopped"))
        except Exception as error:
            self._fail(EngineError(f"the device thread failed: {type(error).__name__}"), cause=error)
            raise

    def _finish(self, under_way: tuple[Plan, StepResult] | None) -> None:
        """Read a step and tell what came out of it."""
        if under_way is not None:
            plan, result = under_way
            token_ids = result.read().tolist()
            self._deliver(self._scheduler.commit(plan, token_ids, result.read_logprobs()))

    def _take(self, *, can_wait: bool) -> None:
        """Empty the inbox; with nothing else to do, wait for the next message."""
        if can_wait:
            self._scheduler.check_integrity()
            message = self.inbox.get()
            self._accept(message)
            if isinstance(message, Submission):
                self._wait_for_burst(message.stream.loop)
        self._accept_all()

    def _accept_all(self) -> None:
        while True:
            try:
                self._accept(self.inbox.get_nowait())
            except queue.Empty:
                return

    def _wait_for_burst(self, event_loop: asyncio.AbstractEventLoop) -> None:
        """Let what was sent together share the first step: wait until the event loop has gone round in vain."""
        end_s = time.monotonic() + BURST_PATIENCE_S
        num_open = 0
        while num_open < len(self._open):
            num_open = len(self._open)
            has_gone_round = threading.Event()
            try:
                event_loop.call_soon_threadsafe(_go_round, event_loop, BURST_ROUNDS, has_gone_round.set)
            except RuntimeError:  # it is closed
                return
            has_gone_round.wait(max(0.0, end_s - time.monotonic()))
            self._accept_all()

    def _accept(self, message: Message) -> None:
        match message:
            case Submission():
                sequence = self._scheduler.add(message.request)
                self._open[message.request.id] = (sequence, message)
            case Abort():
                if (entry := self._open.pop(message.request_id, None)) is not None:
                    self._scheduler.abort(entry[0])
                    self._metrics.request_success.labels(FinishReason.ABORT).inc()
            case Stop():
                self._is_stopping = True

    def _deliver(self, events: list[tuple[RunningSequence, TokenEvent]]) -> None:
        """Tell each stream its event: one wake-up of each event loop, however many streams."""
        now_s = time.perf_counter()
        self._metrics.generation_tokens.inc(sum(len(event.token_ids) for _, event in events))
        by_loop: dict[object, list[Delivery]] = {}
        for sequence, event in events:
            _, submission = self._open[sequence.request.id]
            self._measure_event(submission, event, now_s)
            told = NonFiniteLogits(BROKEN_SCORES) if event.finish_reason is FinishReason.ERROR else event
            by_loop.setdefault(submission.stream.loop, []).append((submission.stream, told))
            if event.finish_reason is not None:
                del self._open[sequence.request.id]
        for deliveries in by_loop.values():
            _hand_over(deliveries)

    def _fail(self, error: EngineError, cause: Exception | None = None) -> None:
        error.__cause__ = cause
        self.error = error
        submissions = [submission for _, submission in self._open.values()]
        while not self.inbox.empty():
            message = self.inbox.get_nowait()
            if isinstance(message, Submission):
                submissions.append(message)
        for submission in submissions:
            _hand_over([(submission.stream, error)])
        self._open.clear()

    def _measure(self, plan: Plan | None) -> None:
        scheduler, metrics = self._scheduler, self._metrics
        metrics.num_requests_running.set(scheduler.num_running)
        metrics.num_requests_waiting.set(scheduler.num_waiting)
        metrics.kv_cache_usage_perc.set(1 - scheduler.pages.num_available / scheduler.pages.num_pages)
        if plan is not None:
            metrics.engine_steps.labels(plan.kind).inc()
            metrics.prompt_tokens.inc(sum(len(row.token_ids) for row in plan.rows))

    def _measure_event(self, submission: Submission, event: TokenEvent, now_s: float) -> None:
        metrics = self._metrics
        if self.first_token_s is None:
            self.first_token_s = time.monotonic()
        if submission.last_token_s is None:
            metrics.time_to_first_token_seconds.observe(now_s - submission.submitted_s)
        else:
            metrics.inter_token_latency_seconds.observe(now_s - submission.last_token_s)
        submission.last_token_s = now_s
        if event.finish_reason is not None:
            metrics.e2e_request_latency_seconds.observe(now_s - submission.submitted_s)
            metrics.request_success.labels(event.finish_reason).inc()


def _go_round(event_loop: asyncio.AbstractEventLoop, num_rounds: int, then: Callable[[], None]) -> None:
    if num_rounds == 0:
        then()
    else:
        event_loop.call_soon(_go_round, event_loop, num_rounds - 1, then)


def _hand_over(deliveries: list[Delivery]) -> None:
    try:
        deliveries[0][0].loop.call_soon_threadsafe(_put_all, deliveries)
    except RuntimeError:  # the event loop is closed: its clients are gone, and nobody waits for these events
        for stream, _ in deliveries:
            stream.abort()


def _put_all(deliveries: list[Delivery]) -> None:
    for stream, event in deliveries:
        stream.put(event)
