"""The state of a pool, which the event loop and the threads that load and unload share under one lock."""

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
from service.server.pool.residence import Residence, Waiter


@dataclass(frozen=True, kw_only=True)
class PoolLimits:
    """What a pool may hold, and how long requests wait."""

    max_models: int  # loaded at once
    max_waiting: int  # requests that wait for a model
    load_wait_s: float  # of one request

    @property
    def yield_after_s(self) -> float:
        """How long a request waits before a busy model makes room: half, so that the other half is left for loading."""
        return self.load_wait_s / 2


@dataclass(eq=False)
class PoolState:
    """Every model that was ever asked for, by name."""

    limits: PoolLimits
    metrics: Metrics
    # Called, without the lock, with the time when a model's load began, once the unloaded model refers to itself alone.
    free: Callable[[float], None] = lambda begun_s: None
    clock: Callable[[], float] = time.monotonic
    changed: threading.Condition = field(default_factory=threading.Condition)
    residences: dict[str, Residence] = field(default_factory=dict)
    is_closed: bool = False  # whether no request may wait any more

    # All of these are called with the lock held, except where it says otherwise.

    @property
    def versions(self) -> Iterator[Residence]:
        """Every version of every model."""
        return (version for residence in self.residences.values() for version in residence.versions)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a model."""
        return sum(len(residence.waiters) for residence in self.residences.values())

    def grant(self, residence: Residence) -> Lease:
        """Let a request hold a model that is ready."""
        assert residence.loaded is not None, "a model that is ready is loaded"
        residence.num_open += 1
        residence.last_used_s = self.clock()
        return Lease(residence.loaded.served, partial(self.release, residence))

    def grant_all(self, residence: Residence) -> None:
        """Let every request that waits for a model hold it."""
        waiters, residence.waiters = residence.waiters, []
        for waiter in waiters:
            _resolve_on_loop(waiter, self.grant(residence))

    def refuse_all(self, residence: Residence, error: RequestError) -> None:
        """Refuse every request that waits for a model."""
        waiters, residence.waiters = residence.waiters, []
        for waiter in waiters:
            _resolve_on_loop(waiter, error)

    def release(self, residence: Residence) -> None:
        """End a request's hold; takes the lock."""
        with self.changed:
            residence.num_open -= 1
            residence.last_used_s = self.clock()
            if not residence.num_open:
                self.changed.notify_all()


def _resolve_on_loop(waiter: Waiter, outcome: Lease | RequestError) -> None:
    try:
        waiter.loop.call_soon_threadsafe(_resolve, waiter.future, outcome)
    except RuntimeError:  # the loop is closed, and its requests with it
        if isinstance(outcome, Lease):
            # Its lock is held by this thread, and can be taken again.
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
    """Wait until a model is granted; one that is granted in the moment of a cancellation is let go.

    Raises:
        RequestError: the model does not come.
    """
    try:
        return await waiter.future
    except asyncio.CancelledError:
        if waiter.future.done() and not waiter.future.cancelled():
            with contextlib.suppress(RequestError):
                waiter.future.result().release()
        raise
