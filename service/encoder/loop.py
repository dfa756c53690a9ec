"""The device thread of an encoder: take messages, run a step, deliver vectors.

A step is dispatched as soon as the device is free, with all texts that have arrived by then: there is no window to wait
for more. Only a full step is dispatched while another one runs, because texts that arrive meanwhile could not join it.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, override, runtime_checkable

import numpy as np

from service.encoder.batcher import Batcher, EncoderPlan
from service.encoder.request import EncodeRequest, HiddenStates, VectorAnswer, Vectors
from service.encoder.shapes import EncoderShapes
from service.engine.device_thread import DeviceLoop, Submission, hand_over
from service.errors import EngineError, NonFiniteVector
from service.observability.model_metrics import ModelMetrics


@runtime_checkable
class EncoderStepRunner(Protocol):
    """The device side, as the loop uses it."""

    @property
    def shapes(self) -> EncoderShapes:
        """The sizes of steps."""
        ...

    def usable_buckets(self) -> Sequence[int]:
        """Return the buckets whose executables need not be waited for."""
        ...

    def dispatch(self, plan: EncoderPlan) -> Any:
        """Start a step and return at once what `read` takes."""
        ...

    def read(self, step: Any, num_texts: int) -> Vectors:
        """Wait for a step and return the vectors of its texts."""
        ...

    def read_tokens(self, step: Any, plan: EncoderPlan) -> Mapping[int, HiddenStates]:
        """Wait for a step and return the hidden states of the texts that want them, by their places in the plan."""
        ...


@dataclass
class _Open:
    """A request whose vectors are not complete."""

    submission: Submission[EncodeRequest, VectorAnswer]
    rows: dict[int, np.ndarray] = field(default_factory=dict)  # by the text's number

    @property
    def is_complete(self) -> bool:
        """Whether it has the rows of every text."""
        return len(self.rows) == len(self.submission.request.texts)

    def vectors(self) -> Vectors:
        """Return the rows in the order of the texts."""
        return np.concatenate([self.rows[number] for number in range(len(self.rows))])


type Outcome = Vectors | EngineError


class EncoderLoop(DeviceLoop[EncodeRequest, VectorAnswer]):
    """Packs the texts of open requests into steps, and collects the vectors of each request."""

    def __init__(self, runner: EncoderStepRunner, metrics: ModelMetrics) -> None:
        super().__init__()
        self._batcher = Batcher(runner.shapes)
        self._runner = runner
        self._metrics = metrics
        self._open: dict[str, _Open] = {}
        self._in_flight: tuple[EncoderPlan, Any] | None = None
        self._reading_since_s: float | None = None

    @property
    @override
    def reading_since_s(self) -> float | None:
        return self._reading_since_s

    @override
    def _turn(self) -> None:
        if self._in_flight is None and not len(self._batcher):
            self._take(self.inbox.get())
        self._take_all()
        self._step()

    def _step(self) -> None:
        previous, self._in_flight = self._in_flight, None
        if previous is None or self._batcher.fills_a_step:
            self._in_flight = self._dispatch()
        if previous is None:
            return
        plan, outputs = previous
        self._reading_since_s = time.monotonic()
        vectors = self._runner.read(outputs, len(plan.texts))
        tokens = self._runner.read_tokens(outputs, plan) if plan.wants_tokens else {}
        self._reading_since_s = None
        if self._in_flight is None:  # the device is free: the next step comes before the answers to this one
            self._take_all()
            self._in_flight = self._dispatch()
        self._deliver(plan, vectors, tokens)

    def _dispatch(self) -> tuple[EncoderPlan, Any] | None:
        plan = self._batcher.plan(self._runner.usable_buckets())
        load = self._metrics.load
        load.num_running, load.num_waiting = len(self._open), len(self._batcher)
        load.updated_at = time.time()
        if plan is None:
            return None
        self._note_begun(plan)
        self._metrics.engine_steps.labels("encode").inc()
        self._metrics.prompt_tokens.inc(plan.num_tokens)
        return plan, self._runner.dispatch(plan)

    def _note_begun(self, plan: EncoderPlan) -> None:
        now_s = time.perf_counter()
        for clock in (text.request.clock for text in plan.texts):
            if clock.scheduled_s is None:
                clock.scheduled_s = now_s
                self._metrics.request_queue_time_seconds.observe(now_s - clock.submitted_s)

    @override
    def _submit(self, submission: Submission[EncodeRequest, VectorAnswer]) -> None:
        self._open[submission.request.id] = _Open(submission)
        self._batcher.add(submission.request)

    @override
    def _abort(self, request_id: str) -> None:
        if self._open.pop(request_id, None) is not None:
            self._batcher.remove(request_id)
            self._metrics.request_success.labels("abort").inc()

    @override
    def _close_all(self) -> list[VectorAnswer]:
        answers = [opened.submission.answer for opened in self._open.values()]
        self._open.clear()
        return answers

    def _deliver(self, plan: EncoderPlan, vectors: Vectors, tokens: Mapping[int, HiddenStates]) -> None:
        if self.first_answer_s is None:
            self.first_answer_s = time.monotonic()
        deliveries: list[tuple[VectorAnswer, Outcome]] = []
        are_finite = np.isfinite(vectors).all(axis=-1).tolist()
        for place, (text, vector, is_finite) in enumerate(zip(plan.texts, vectors, are_finite, strict=True)):
            request_id = text.request.id
            opened = self._open.get(request_id)
            if opened is None:  # its client is gone, or another of its texts has failed
                continue
            rows = tokens.get(place)
            if not (is_finite if rows is None else np.isfinite(rows).all()):
                self._batcher.remove(request_id)
                deliveries.append(self._close(request_id, NonFiniteVector(text.number)))
                continue
            opened.rows[text.number] = vector[None] if rows is None else rows
            if opened.is_complete:
                deliveries.append(self._close(request_id, opened.vectors()))
        hand_over(deliveries)

    def _close(self, request_id: str, outcome: Outcome) -> tuple[VectorAnswer, Outcome]:
        submission = self._open.pop(request_id).submission
        self._metrics.e2e_request_latency_seconds.observe(time.perf_counter() - submission.request.clock.submitted_s)
        self._metrics.request_success.labels("error" if isinstance(outcome, EngineError) else "stop").inc()
        return submission.answer, outcome
