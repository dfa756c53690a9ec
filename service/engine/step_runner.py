"""The device side as the loop uses it: what starts steps, and what they return."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from service.engine.available_steps import AvailableSteps
from service.engine.request import StepLogprobs
from service.engine.schedule.pages import PageCopy
from service.engine.schedule.plan import Plan


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
    """The device side, as the loop uses it."""

    @property
    def may_wait(self) -> bool:
        """Whether executables are still being loaded or compiled, so that a step or a copy may wait for one."""
        ...

    @property
    def waited_for_compile_s(self) -> float:
        """How long steps have waited for executables so far."""
        ...

    def available_steps(self) -> AvailableSteps:
        """Return the steps that run without waiting for an executable."""
        ...

    def copy_pages(self, copies: list[PageCopy]) -> None:
        """Start copies between slots and pages, if the kernel keeps a cache per slot."""
        ...

    def dispatch(self, plan: Plan, read_previous: Callable[[], None]) -> DispatchedStep:
        """Start a step and return at once.

        Args:
            plan: the step.
            read_previous: reads the step before, whose tokens a constrained sequence needs before it samples.
        """
        ...
