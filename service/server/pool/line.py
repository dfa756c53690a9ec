"""The line of models to be loaded: one at a time, so that each has the whole bandwidth and none waits half loaded.

A thread works through the line and ends with it. Before a byte is read the model waits for room, which the policy
makes: idle models are unloaded by this thread, busy ones when their last request has ended.
"""

import logging
import threading
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from service.errors import DoesNotFit, Draining, ModelLoadFailed
from service.observability.model_metrics import ModelMetrics
from service.server.pool.ended_loads import LoadCancelled, NobodyWaits
from service.server.pool.policy import Capacity, Enter, Evict, NeverFits, Newcomer, Wait, decide
from service.server.pool.residence import Load, Loading, Residence
from service.server.pool.state import PoolState

if TYPE_CHECKING:
    from collections.abc import Callable

    from service.catalogue.entry import ModelEntry

    type OnComplete = Callable[[ModelEntry, BaseException | None], None]

logger = logging.getLogger(__name__)


class LoadingLine:
    """Loads and unloads the models of a pool."""

    def __init__(self, state: PoolState, load: Load, on_complete: "OnComplete") -> None:
        """Create an empty line.

        Args:
            state: of the pool.
            load: begins a load; it may block, and its `MakeRoom` may be called from any thread.
            on_complete: called from a thread when a model's start has completed, or failed after it answered.
        """
        self._state, self._load_model, self._on_complete = state, load, on_complete
        self._line: list[Residence] = []
        self._has_thread = False

    def join(self, residence: Residence) -> None:
        """Put a model into the line; called with the lock held."""
        if residence.is_in_line:
            return
        residence.is_in_line = True
        self._line.append(residence)
        if not self._has_thread:
            self._has_thread = True
            threading.Thread(target=self._work, name="load", daemon=True).start()

    def load(self, residence: Residence) -> None:
        """Load a model, and let the requests that wait for it hold it.

        Raises:
            BaseException: why it cannot be loaded.
        """
        state, metrics = self._state, self._metrics(residence)
        began_s = state.clock()  # after the series are there: the seconds of a load say how long the model stays
        try:
            if not self._make_way(residence):
                return
            loading = self._load_model(residence.entry, partial(self._make_room, residence))
            with state.changed:
                residence.loading = loading
            loaded = loading.wait()
        except BaseException as error:
            if residence.is_cancelled and not isinstance(error, LoadCancelled):  # its transfers were ended
                cancelled = LoadCancelled(residence.entry.name)
                self._fail(residence, cancelled)
                raise cancelled from error
            self._fail(residence, error)
            raise
        with state.changed:
            residence.loaded, residence.state, residence.failure = loaded, "ready", None
            residence.is_in_line = residence.is_requested = False
            residence.ready_s = residence.last_used_s = state.clock()
            residence.load_s = residence.ready_s - began_s
            residence.num_loads += 1
            residence.is_leaving = residence.is_cancelled  # an operator was too late to end the load
            metrics.model_loads.labels("ready").inc()
            metrics.model_load_seconds.observe(residence.load_s)
            residence.num_open = 1  # its own start, until that is complete
            state.grant_all(residence)
            if residence.older is not None:
                residence.older.is_leaving = True
                self.begin_unload(residence.older)
        threading.Thread(target=self._complete, args=(residence, loading), name="complete", daemon=True).start()

    def begin_unload(self, residence: Residence) -> Future[None]:
        """Unload a model that takes no further requests on a thread, one for all who ask; the lock is held.

        Returns:
            What is done once the model is unloaded, or is loaded again.
        """
        if residence.unloading is None:
            residence.unloading = Future()
            threading.Thread(target=self._finish_unload, args=(residence,), name="unload", daemon=True).start()
        return residence.unloading

    def unload_when_idle(self, residence: Residence) -> None:
        """Wait for a load and for the last request; then unload the model, unless it was loaded again meanwhile."""
        state = self._state
        with state.changed:
            state.changed.wait_for(lambda: residence.state != "loading")
            num_loads = residence.num_loads
            state.changed.wait_for(
                lambda: residence.state != "ready" or residence.num_loads != num_loads or not residence.num_open
            )
            if residence.num_loads != num_loads:
                return
            residence.is_leaving = residence.state == "ready"
        self._unload(residence)

    def _finish_unload(self, residence: Residence) -> None:
        failure: BaseException | None = None
        unloading: Future[None] | None = None
        while unloading is None:
            try:
                self.unload_when_idle(residence)
            except BaseException as error:
                failure = error
            with self._state.changed:
                # Another request may have come for what was loaded again.
                if failure is not None or residence.state != "ready" or not residence.is_leaving:
                    unloading, residence.unloading = residence.unloading, None
        if failure is None:
            unloading.set_result(None)
        else:
            unloading.set_exception(failure)

    def _work(self) -> None:
        while (residence := self._next()) is not None:
            try:
                self.load(residence)
            except Exception as error:
                level = logging.INFO if isinstance(error, NobodyWaits | LoadCancelled | Draining) else logging.ERROR
                logger.log(level, "a model was not loaded", extra={"model": residence.entry.name, "reason": str(error)})

    def _next(self) -> Residence | None:
        with self._state.changed:
            if self._line and not self._state.is_closed:
                return self._line.pop(0)
            self._has_thread = False
            return None

    def _make_way(self, residence: Residence) -> bool:
        """Unload the model's older version; return whether it is to be loaded, and is not ready after all."""
        state = self._state
        with state.changed:
            if residence.is_open:
                residence.is_in_line = False
                state.grant_all(residence)
                return False
        self.unload_when_idle(residence)
        with state.changed:
            state.changed.wait_for(lambda: residence.state == "available")
            residence.state, residence.is_cancelled = "loading", False
        return True

    def _make_room(self, residence: Residence, num_bytes: int, capacity_bytes: int) -> None:
        limits = self._state.limits
        capacity = Capacity(max_models=limits.max_models, num_bytes=capacity_bytes, yield_after_s=limits.yield_after_s)
        yielding: list[Residence] = []
        try:
            while (idle := self._seek_room(residence, num_bytes, capacity, yielding)) is not None:
                for other in idle:
                    self._unload(other)
                    self._metrics(other).model_evictions.inc()
        except BaseException:
            with self._state.changed:
                for other in yielding:
                    if other.state == "ready":
                        other.is_leaving = False
            raise

    def _seek_room(
        self, residence: Residence, num_bytes: int, capacity: Capacity, yielding: list[Residence]
    ) -> list[Residence] | None:
        """Take the room if it is there and return None; otherwise return what to unload, or wait for a change.

        Args:
            residence: the model to be loaded.
            num_bytes: what it takes.
            capacity: what all may take.
            yielding: the models that make room for it; the policy's choice is added.
        """
        state = self._state
        with state.changed:
            self._check_wanted(residence)
            now_s = state.clock()
            since_s = min((waiter.since_s for waiter in residence.waiters), default=now_s)
            others = [other for other in state.versions if other is not residence and other.num_bytes]
            newcomer = Newcomer(num_bytes=num_bytes, waiting_since_s=since_s)
            decision = decide(newcomer, [other.resident for other in others], capacity, now_s)
            if residence.older is not None and residence.older.is_open and isinstance(decision, Evict | Wait):
                decision = Evict((residence.older.resident.name,))  # rather than another model
            match decision:
                case Enter():
                    residence.num_bytes = num_bytes
                    self._metrics(residence).model_memory_bytes.set(num_bytes)
                    return None
                case NeverFits(available_bytes, num_kept):
                    remedy = f"{num_kept} models stay loaded, of {capacity.max_models} that may be."
                    raise DoesNotFit(needed_bytes=num_bytes, available_bytes=available_bytes, remedy=remedy)
                case Evict(names):
                    chosen = [other for other in others if other.resident.name in names]
                    yielding += chosen
                    for other in chosen:
                        other.is_leaving = True
                case Wait(until_s):
                    if not _idle(yielding):
                        state.changed.wait(None if until_s is None else until_s - now_s)
            return _idle(yielding)

    def _check_wanted(self, residence: Residence) -> None:
        if self._state.is_closed:
            raise Draining
        if residence.is_cancelled:
            raise LoadCancelled(residence.entry.name)
        if not residence.waiters and not residence.is_requested:
            raise NobodyWaits(f"no request waits for {residence.entry.name!r} any more")

    def _unload(self, residence: Residence) -> None:
        with self._state.changed:
            if residence.state != "ready":
                return
            loaded, residence.loaded, residence.state = residence.loaded, None, "unloading"
        assert loaded is not None, "a model that is ready is loaded"
        try:
            loaded.unload()
        finally:
            del loaded
            self._state.free(residence.ready_s - residence.load_s)  # before another model takes the memory
            with self._state.changed:
                residence.state, residence.num_bytes, residence.is_leaving = "available", 0, False
                current = self._state.residences[residence.entry.name]
                if current.older is residence:
                    current.older = None
                self._clear_metrics(residence)
                self._state.changed.notify_all()
        logger.info("unloaded", extra={"model": residence.entry.name})

    def _complete(self, residence: Residence, loading: Loading) -> None:
        """Wait for the rest of a start, which holds the model until then."""
        state = self._state
        failure: BaseException | None = None
        try:
            loading.wait_until_complete()
        except BaseException as error:
            failure = error
        with state.changed:
            residence.loading = None
            if residence.is_cancelled:
                failure = None
            if failure is not None:
                residence.failure = (str(failure), state.clock())
                residence.is_leaving = True
            residence.num_open -= 1
            state.changed.notify_all()
        del loading
        self._on_complete(residence.entry, failure)
        if failure is not None:
            self.unload_when_idle(residence)

    def _fail(self, residence: Residence, error: BaseException) -> None:
        state = self._state
        with state.changed:
            residence.state, residence.num_bytes, residence.loading = "available", 0, None
            self._clear_metrics(residence)
            is_cancelled = isinstance(error, NobodyWaits | LoadCancelled | Draining)
            self._metrics(residence).model_loads.labels("cancelled" if is_cancelled else "failed").inc()
            residence.is_in_line = residence.is_requested = False
            if isinstance(error, NobodyWaits) and residence.waiters:  # one has come since
                self.join(residence)
            elif not isinstance(error, NobodyWaits | LoadCancelled):
                residence.failure = (str(error), state.clock())
            if not residence.is_in_line:
                refusal = error if isinstance(error, Draining) else ModelLoadFailed(residence.entry.name, str(error))
                state.refuse_all(residence, refusal)
            state.changed.notify_all()

    def _clear_metrics(self, residence: Residence) -> None:
        """Note that a model is not in memory, unless another version of it is."""
        if not any(version.num_bytes for version in self._state.residences[residence.entry.name].versions):
            self._metrics(residence).clear_state()

    def _metrics(self, residence: Residence) -> ModelMetrics:
        return self._state.metrics.of_model(residence.entry.name)


def _idle(residences: list[Residence]) -> list[Residence]:
    return [residence for residence in residences if residence.state == "ready" and not residence.num_open]
