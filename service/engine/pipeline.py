"""Steps of the device, one ahead of reading: a step is dispatched before the previous one is read.

So the device computes while the host plans, packs and delivers.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from service.engine.request import StepLogprobs, TokenEvent
from service.engine.schedule.plan import PageCopy, Plan
from service.engine.schedule.scheduler import Scheduler
from service.engine.schedule.sequence import Sequence as RunningSequence

type Events = list[tuple[RunningSequence, TokenEvent]]


@runtime_checkable
class IntRow(Protocol):
    """One integer per sequence, as a numpy array has them."""

    def tolist(self) -> list[int]:
        """Return plain integers."""
        ...


@runtime_checkable
class DispatchedStep(Protocol):
    """A step in flight."""

    def read(self) -> IntRow:
        """Wait for the step and return one token per sequence; -1 for one whose logits are NaN or infinite."""
        ...

    def read_logprobs(self) -> StepLogprobs | None:
        """Return the requested log-probabilities, if any."""
        ...


@runtime_checkable
class StepRunner(Protocol):
    """The device side, as the pipeline uses it."""

    @property
    def has_pages(self) -> bool:
        """Whether the pages that copies need are made already."""
        ...

    def copy_pages(self, copies: Sequence[PageCopy]) -> None:
        """Start copies between slots and pages, if the kernel keeps a cache per slot."""
        ...

    def dispatch(self, plan: Plan) -> DispatchedStep:
        """Start a step and return at once."""
        ...


class StepPipeline:
    """Runs the scheduler's plans on the device; belongs to one thread."""

    def __init__(self, scheduler: Scheduler, runner: StepRunner, deliver: Callable[[Events], None]) -> None:
        """Connect scheduler and device.

        Args:
            scheduler: the source of plans.
            runner: the device side.
            deliver: receives the events of each step that is read.
        """
        self._scheduler = scheduler
        self._runner = runner
        self._deliver = deliver
        self._in_flight: tuple[Plan, DispatchedStep] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to plan and nothing to read."""
        return self._in_flight is None and self._scheduler.is_idle

    def step(self) -> Plan | None:
        """Dispatch the next step, then read the previous one and deliver its events; return the new step's plan."""
        plan = self._scheduler.plan()
        copies = self._scheduler.take_copies()
        if copies and not self._runner.has_pages:  # making pages takes long, so the tokens in flight come first
            self._read()
        self._runner.copy_pages(copies)
        dispatched = (plan, self._runner.dispatch(plan)) if plan is not None else None
        self._read()
        self._in_flight = dispatched
        return plan

    def _read(self) -> None:
        if self._in_flight is not None:
            plan, step = self._in_flight
            self._in_flight = None
            token_ids = step.read().tolist()
            self._deliver(self._scheduler.commit(plan, token_ids, step.read_logprobs()))
