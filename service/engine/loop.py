"""The device thread of an engine: take messages, run a step, deliver events.

A step is dispatched before the previous one is read, so the device computes while the host plans, packs and delivers.
A step with constrained sequences starts the same way; only its sampling waits until the previous one is read.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple, Protocol, override, runtime_checkable

from service.engine.device_thread import DeviceLoop, Submission, hand_over
from service.engine.request import FinishReason, Request, StepLogprobs, TokenEvent, TokenStream
from service.engine.schedule.device_turns import EngineTurns
from service.engine.schedule.plan import Plan
from service.engine.schedule.scheduler import Scheduler
from service.engine.schedule.sequence import Sequence
from service.engine.shapes import AvailableSteps
from service.errors import NonFiniteLogits, QueueTimeout, ServiceError
from service.observability.clock import Clock
from service.observability.model_load import ModelLoad
from service.observability.model_metrics import ModelMetrics

# Requests that are sent together are parsed one after another, and a step that begins with only the first of them
# delays the others. Within six iterations of the event loop, eight requests sent at once had always arrived.
BURST_ITERATIONS = 6
BURST_PATIENCE_S = 0.02

NON_FINITE_LOGITS = (
    "The model's logits for the next token are NaN or infinite, so none can be chosen. This ends this request only. "
    "The checkpoint's weights or the DTYPE may be at fault; another prompt may work."
)

# Deadlines of ended requests are dropped once there are this many times as many deadlines as open requests.
MAX_SURPLUS, MIN_KEPT = 2, 64

type Events = list[tuple[Sequence, TokenEvent]]


@runtime_checkable
class IntRow(Protocol):
    """Integers, as a numpy array has them."""

    def tolist(self) -> list[int]:
        """Return plain integers."""
        ...


@runtime_checkable
class DispatchedStep(Protocol):
    """A step in flight."""

    def read(self) -> IntRow:
        """Wait for the step and return its tokens, one per sequence and per draft; see `PlannedSequence.num_samples`.

        A token is -1 where the logits are NaN or infinite.
        """
        ...

    def read_logprobs(self) -> StepLogprobs | None:
        """Return the requested log-probabilities, if any."""
        ...


@runtime_checkable
class StepRunner(Protocol):
    """The device side, as the loop uses it."""

    @property
    def may_wait(self) -> bool:
        """Whether executables are still being loaded or compiled, so that a step may wait for one."""
        ...

    @property
    def waited_for_compile_s(self) -> float:
        """How long steps have waited for executables so far."""
        ...

    def available_steps(self) -> AvailableSteps:
        """Return the steps that run without waiting for an executable."""
        ...

    def dispatch(self, plan: Plan, read_previous: Callable[[], None]) -> DispatchedStep:
        """Start a step and return at once.

        Args:
            plan: the step.
            read_previous: reads the step before, whose tokens a constrained sequence needs before it samples.
        """
        ...


class InFlight(NamedTuple):
    """A step that was dispatched."""

    plan: Plan
    step: DispatchedStep
    began_s: float  # when it was, on the clock of `time.perf_counter`
    is_first: bool  # whether it followed a pause


class StepPipeline:
    """Runs the scheduler's plans on the device, one step ahead of reading; belongs to one thread."""

    def __init__(
        self, scheduler: Scheduler, runner: StepRunner, deliver: Callable[[Events], None], turns: EngineTurns
    ) -> None:
        """Connect scheduler and device.

        Args:
            scheduler: the source of plans.
            runner: the device side.
            deliver: receives the events of each step that is read.
            turns: with the other engines of the device.
        """
        self._turns = turns
        self._scheduler = scheduler
        self._runner = runner
        self._deliver = deliver
        self._in_flight: InFlight | None = None
        self._is_paused = True  # whether no step came just before the next one
        self._has_all_steps = False
        self._read_s = 0.0  # when the last step was read, on the clock of `time.perf_counter`
        self.reading_since_s: float | None = None  # while it waits for a step, on the clock of `time.monotonic`

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to plan and nothing to read."""
        return self._in_flight is None and self._scheduler.is_idle

    def step(self) -> Plan | None:
        """Run the next step in its turn, and return its plan.

        A single engine runs ahead. Where several have work, each step runs to its end in its turn; what the host does
        with it falls into the next engine's.
        """
        if not self._turns.is_contended:
            return self._run_ahead()
        with self._turns.turn():
            plan = self._run_ahead()
            if self._in_flight is not None:
                self._wait_for(self._in_flight.step)
        self._read()
        self._is_paused = True
        return plan

    def _run_ahead(self) -> Plan | None:
        """Dispatch the next step, then read the previous one and deliver its events; return the new step's plan."""
        may_wait = self._scheduler.is_loading = self._runner.may_wait
        # The tokens in flight come before a step that may wait for an executable, and before drafts, which follow them.
        if may_wait or (self._in_flight and self._in_flight.plan.num_drafts) or self._scheduler.may_draft:
            self._read()
        if not self._has_all_steps:
            steps = self._runner.available_steps()
            self._scheduler.adapt(steps)
            self._has_all_steps = steps.is_complete
        self.reading_since_s = time.monotonic()  # the plan waits for a draft model's steps
        plan = self._scheduler.plan()
        self.reading_since_s = None
        if plan is None:
            self._read()
            self._is_paused = True
            return None
        began_s = time.perf_counter()
        dispatched = InFlight(plan, self._runner.dispatch(plan, self._read), began_s, is_first=self._is_paused)
        self._is_paused = False
        self._read()
        self._in_flight = dispatched
        return plan

    def _read(self) -> None:
        if self._in_flight is not None:
            plan, step, began_s, is_first = self._in_flight
            self._in_flight = None
            token_ids = self._wait_for(step)
            now_s = time.perf_counter()
            if not self._runner.may_wait:
                since_last_s = None if is_first else now_s - self._read_s
                self._scheduler.observe(plan, now_s - max(began_s, self._read_s), since_last_s)
            self._read_s = now_s
            self._deliver(self._scheduler.commit(plan, token_ids, step.read_logprobs()))

    def _wait_for(self, step: DispatchedStep) -> list[int]:
        """Wait until a step is done, and return its tokens."""
        self.reading_since_s = time.monotonic()
        token_ids = step.read().tolist()
        self.reading_since_s = None
        return token_ids


class Measurements:
    """Prometheus metrics of one scheduler, recorded on its thread."""

    def __init__(self, scheduler: Scheduler, metrics: ModelMetrics, load: ModelLoad) -> None:
        """Set the gauges that never change."""
        self._scheduler, self._metrics, self._load = scheduler, metrics, load
        self._counters = (metrics.num_preemptions, metrics.mm_cache_queries, metrics.mm_cache_hits)
        if (speculation := scheduler.speculation) is not None:
            places = range(len(speculation.num_accepted_at))
            per_position = (metrics.spec_decode_num_accepted_tokens_per_pos.labels(str(place)) for place in places)
            drafts = (metrics.spec_decode_num_drafts, metrics.spec_decode_num_draft_tokens)
            self._counters += (*drafts, metrics.spec_decode_num_accepted_tokens, *per_position)
        self._counted: tuple[int, ...] = (0,) * len(self._counters)  # of the scheduler's counts, what they have
        load.page_size, load.num_pages = scheduler.page_size, scheduler.pages.num_pages
        load.num_slots, load.num_adapter_slots = scheduler.num_slots, scheduler.num_adapter_slots
        metrics.cache_config_info.labels(str(scheduler.page_size), str(scheduler.pages.num_pages)).set(1)

    def state(self) -> None:
        """Update the gauges of running and waiting requests, slots and pages."""
        scheduler, load = self._scheduler, self._load
        load.num_running, load.num_waiting = scheduler.num_running, scheduler.num_waiting
        load.running_adapters, load.waiting_adapters = scheduler.adapter_names()
        load.num_used_pages = scheduler.num_used_pages
        if places := scheduler.places.num_pages:
            load.media_usage = 1 - scheduler.places.num_available / places
        load.decode_s = scheduler.decode_s or 0.0
        load.updated_at = time.time()
        load.lacks_slots = not scheduler.has_free_slot
        counts = (scheduler.num_preemptions, scheduler.memories.num_asked, scheduler.memories.num_found)
        if (speculation := scheduler.speculation) is not None:
            drafted = (speculation.num_drafts, speculation.num_draft_tokens, speculation.num_accepted_tokens)
            counts += (*drafted, *speculation.num_accepted_at)
        for counter, count, counted in zip(self._counters, counts, self._counted, strict=True):
            if count != counted:
                counter.inc(count - counted)
        self._counted = counts

    def plan(self, plan: Plan) -> None:
        """Count a step that was dispatched."""
        if plan.part is not None:
            self._metrics.engine_steps.labels(plan.kind).inc()
            return
        self._metrics.engine_steps.labels(plan.kind).inc()
        self._metrics.prompt_tokens.inc(plan.num_prompt_tokens)
        self._metrics.iteration_tokens_total.observe(sum(planned.num_tokens for planned in plan.seqs))

    def scheduled(self, sequence: Sequence, clock: Clock, now_s: float) -> None:
        """Count a request whose first step was dispatched; later calls for it do nothing."""
        if clock.scheduled_s is None:
            clock.scheduled_s = now_s
            self._metrics.request_queue_time_seconds.observe(now_s - clock.submitted_s)
            self._metrics.prefix_cache_queries.inc(sequence.prompt_len)
            self._metrics.prefix_cache_hits.inc(sequence.num_cached_tokens)

    def arrived(self, clock: Clock, num_tokens: int, now_s: float) -> None:
        """Count tokens of one request that were read."""
        metrics = self._metrics
        metrics.generation_tokens.inc(num_tokens)
        if clock.last_token_s is None:
            clock.first_token_s = now_s
            metrics.time_to_first_token_seconds.observe(now_s - clock.submitted_s)
            if clock.scheduled_s is not None:
                metrics.request_prefill_time_seconds.observe(now_s - clock.scheduled_s)
        else:
            metrics.inter_token_latency_seconds.observe(now_s - clock.last_token_s)
        clock.last_token_s = now_s

    def ended(self, sequence: Sequence, clock: Clock, reason: FinishReason) -> None:
        """Count a request that has ended by itself, or was aborted."""
        metrics, num_tokens = self._metrics, len(sequence.output_ids)
        metrics.request_success.labels(reason).inc()
        metrics.request_prompt_tokens.observe(sequence.prompt_len)
        metrics.request_generation_tokens.observe(num_tokens)
        metrics.request_params_max_tokens.observe(sequence.request.max_tokens)
        if clock.first_token_s is None or clock.last_token_s is None or reason is FinishReason.ABORT:
            return
        metrics.e2e_request_latency_seconds.observe(clock.last_token_s - clock.submitted_s)
        decode_s = clock.last_token_s - clock.first_token_s
        metrics.request_decode_time_seconds.observe(decode_s)
        if clock.scheduled_s is not None:
            metrics.request_inference_time_seconds.observe(clock.last_token_s - clock.scheduled_s)
        if num_tokens > 1:
            metrics.request_time_per_output_token_seconds.observe(decode_s / (num_tokens - 1))


class QueueDeadlines:
    """A heap of the requests' deadlines for their first step."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, str, float]] = []  # a heap of ends, ids and limits

    def __len__(self) -> int:
        """Return the number of deadlines that are kept."""
        return len(self._ends)

    def add(self, request: Request, open_ids: Collection[str]) -> None:
        """Add a request's deadline, if it has one; deadlines of requests that are not open may be dropped."""
        if request.queue_deadline is None:
            return
        heappush(self._ends, (request.queue_deadline.end_s, request.id, request.queue_deadline.limit_s))
        if len(self._ends) > max(MIN_KEPT, MAX_SURPLUS * len(open_ids)):
            self._ends = [end for end in self._ends if end[1] in open_ids]
            heapify(self._ends)

    def pop_expired(self, now_s: float) -> Iterator[tuple[str, QueueTimeout]]:
        """Pop expired deadlines as `(request_id, error)`; the request may already have started or finished."""
        while self._ends and self._ends[0][0] <= now_s:
            _, request_id, limit_s = heappop(self._ends)
            yield request_id, QueueTimeout(limit_s)


class Loop(DeviceLoop[Request, TokenStream]):
    """Runs on the device thread and owns the scheduler."""

    def __init__(
        self, scheduler: Scheduler, runner: StepRunner, metrics: ModelMetrics, turns: EngineTurns, number: int = 0
    ) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._turns = turns
        self._pipeline = StepPipeline(scheduler, runner, self._deliver, turns)
        self._runner = runner
        self._waited_s = 0.0  # of `waited_for_compile_s`, the part that was charged to requests
        self._measurements = Measurements(scheduler, metrics, metrics.load_of(number))
        self._open: dict[str, tuple[Sequence, TokenStream]] = {}
        self._deadlines = QueueDeadlines()

    @property
    @override
    def reading_since_s(self) -> float | None:
        return self._pipeline.reading_since_s

    @override
    def run(self) -> None:
        try:
            super().run()
        finally:
            self._turns.end_work()

    @override
    def _turn(self) -> None:
        if self._pipeline.is_idle:
            self._wait()
        self._take_all()
        self._end_waits(time.perf_counter())
        self._measure(self._pipeline.step())

    def _wait(self) -> None:
        """Wait for the next message, and for requests that arrive together with it."""
        self._scheduler.check_integrity()
        self._turns.end_work()
        message = self.inbox.get()
        self._turns.begin_work()
        self._take(message)
        if isinstance(message, Submission):
            self._wait_for_burst(message.answer.loop)

    def _wait_for_burst(self, event_loop: asyncio.AbstractEventLoop) -> None:
        """Wait until some iterations of the event loop bring no new request, so that a burst shares its first step."""
        end_s = time.monotonic() + BURST_PATIENCE_S
        num_open = 0
        while num_open < len(self._open):
            num_open = len(self._open)
            has_iterated = threading.Event()
            try:
                event_loop.call_soon_threadsafe(_iterate, event_loop, BURST_ITERATIONS, has_iterated.set)
            except RuntimeError:  # it is closed
                return
            has_iterated.wait(max(0.0, end_s - time.monotonic()))
            self._take_all()

    @override
    def _submit(self, submission: Submission[Request, TokenStream]) -> None:
        request = submission.request
        self._open[request.id] = (self._scheduler.add(request), submission.answer)
        self._deadlines.add(request, self._open.keys())

    @override
    def _abort(self, request_id: str) -> None:
        if (entry := self._open.pop(request_id, None)) is not None:
            sequence, stream = entry
            self._scheduler.abort(sequence)
            self._measurements.ended(sequence, stream.clock, FinishReason.ABORT)

    @override
    def _close_all(self) -> list[TokenStream]:
        streams = [stream for _, stream in self._open.values()]
        self._open.clear()
        return streams

    def _end_waits(self, now_s: float) -> None:
        """End the requests that have waited too long, before the next step could begin with them."""
        for request_id, error in self._deadlines.pop_expired(now_s):
            entry = self._open.get(request_id)
            if entry is not None and entry[1].clock.scheduled_s is None:
                self._abort(request_id)
                self._hand_over([(entry[1], error)])

    def _deliver(self, events: Events) -> None:
        """Put each event into its stream."""
        now_s = time.perf_counter()
        if self.first_answer_s is None and events:
            self.first_answer_s = time.monotonic()
        deliveries: list[tuple[TokenStream, TokenEvent | ServiceError]] = []
        for sequence, event in events:
            _, stream = self._open[sequence.request.id]
            self._measurements.arrived(stream.clock, len(event.token_ids), now_s)
            delivered = event
            if event.finish_reason is FinishReason.ERROR:
                delivered = sequence.failure or NonFiniteLogits(NON_FINITE_LOGITS)
            deliveries.append((stream, delivered))
            if event.finish_reason is not None:
                self._measurements.ended(sequence, stream.clock, event.finish_reason)
                del self._open[sequence.request.id]
        self._hand_over(deliveries)

    def _hand_over(self, deliveries: list[tuple[TokenStream, TokenEvent | ServiceError]]) -> None:
        for stream in hand_over(deliveries):
            stream.abort()

    def _measure(self, plan: Plan | None) -> None:
        self._measurements.state()
        if plan is None:
            return
        self._measurements.plan(plan)
        now_s = time.perf_counter()
        for planned in plan.seqs:
            if (entry := self._open.get(planned.sequence.request.id)) is not None:  # it may have ended
                self._measurements.scheduled(planned.sequence, entry[1].clock, now_s)
        if self._runner.waited_for_compile_s > self._waited_s:
            self._attribute_wait(plan)

    def _attribute_wait(self, plan: Plan) -> None:
        """Charge the requests of a step with the time that it waited for an executable."""
        waited_s = self._runner.waited_for_compile_s - self._waited_s
        self._waited_s += waited_s
        for planned in plan.seqs:
            with contextlib.suppress(KeyError):  # it has ended
                self._open[planned.sequence.request.id][1].waited_for_compile_s += waited_s


def _iterate(event_loop: asyncio.AbstractEventLoop, num_iterations: int, then: Callable[[], None]) -> None:
    if num_iterations == 0:
        then()
    else:
        event_loop.call_soon(_iterate, event_loop, num_iterations - 1, then)
