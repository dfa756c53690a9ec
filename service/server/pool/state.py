"""The state of a pool, shared under one lock by the event loop and the threads that load and unload."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from service.api.backend import Lease
from service.errors import RequestError
from service.observability.metrics import Metrics
from service.server.pool.pooled_model import PooledModel, Waiter


@dataclass(frozen=True, kw_only=True)
class PoolLimits:
    """Limits on loaded models and waiting requests."""

    max_models: int  # loaded at the same time
    max_waiting: int  # requests that wait for models
    load_wait_s: float  # per request

    @property
    def yield_after_s(self) -> float:
        """How long a request waits before a busy model yields; leaves the other half of the time for loading."""
        return self.load_wait_s / 2


@dataclass(eq=False)
class PoolState:
    """All models that were ever requested, by name."""

    limits: PoolLimits
    metrics: Metrics
    # Called without the lock, with the load's start time, when only reference cycles keep the unloaded model alive.
    free: Callable[[float], None] = lambda begun_s: None
    clock: Callable[[], float] = time.monotonic
    changed: threading.Condition = field(default_factory=threading.Condition)
    models: dict[str, PooledModel] = field(default_factory=dict)
    is_closed: bool = False  # whether new and waiting requests are refused

    # All methods are called with the lock held, unless stated otherwise.

    @property
    def versions(self) -> Iterator[PooledModel]:
        """All versions of all models."""
        return (version for model in self.models.values() for version in model.versions)

    @property
    def num_waiting(self) -> int:
        return sum(len(model.waiters) for model in self.models.values())

    def grant(self, model: PooledModel) -> Lease:
        """Let a request hold a ready model."""
        assert model.loaded is not None, "a ready model is loaded"
        model.num_open += 1
        model.last_used_s = self.clock()
        return Lease(model.loaded.served, partial(self.release, model))

    def grant_all(self, model: PooledModel) -> None:
        """Let all requests that wait for a model hold it."""
        waiters, model.waiters = model.waiters, []
        for waiter in waiters:
            _resolve_on_loop(waiter, self.grant(model))

    def refuse_all(self, model: PooledModel, error: RequestError) -> None:
        """Refuse all requests that wait for a model."""
        waiters, model.waiters = model.waiters, []
        for waiter in waiters:
            _resolve_on_loop(waiter, error)

    def release(self, model: PooledModel) -> None:
        """End a request's hold; takes the lock."""
        with self.changed:
            model.num_open -= 1
            model.last_used_s = self.clock()
            if not model.num_open:
                self.changed.notify_all()


def _resolve_on_loop(waiter: Waiter, outcome: Lease | RequestError) -> None:
    try:
        waiter.loop.call_soon_threadsafe(_resolve, waiter.future, outcome)
    except RuntimeError:  # the loop is closed, and its requests with it
        if isinstance(outcome, Lease):
            # This thread holds the lock, which is reentrant.
            outcome.release()


def _resolve(future: "asyncio.Future[Lease]", outcome: Lease | RequestError) -> None:
    if future.done():  # the request has ended
        if isinstance(outcome, Lease):
            outcome.release()
    elif isinstance(outcome, Lease):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


async def granted(waiter: Waiter) -> Lease:
    """Wait until a model is granted; release it if the wait is cancelled at the same time.

    Raises:
        RequestError: the request was refused.
    """
    try:
        return await waiter.future
    except asyncio.CancelledError:
        if waiter.future.done() and not waiter.future.cancelled():
            with contextlib.suppress(RequestError):
                waiter.future.result().release()
        raise
