"""The load queue: one model at a time, so each gets the full bandwidth and none sits half loaded.

A thread works through the queue and ends when it is empty. A model waits for room before any of it is read. The policy
decides how to make room: this thread unloads idle models, and busy ones go when their last request has finished.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from service.catalogue.entry import ModelEntry
from service.errors import DoesNotFit, Draining, ModelLoadFailed, ServiceError
from service.observability.model_metrics import ModelMetrics
from service.server.pool.policy import Capacity, Enter, Evict, NeverFits, Newcomer, Wait, decide
from service.server.pool.pooled_model import Event, Load, Loading, PooledModel, State
from service.server.pool.state import PoolState

logger = logging.getLogger(__name__)

type OnComplete = Callable[[ModelEntry, BaseException | None], None]


class NobodyWaits(ServiceError):
    """All requests for a model have ended before there was room for it."""


class LoadCancelled(ServiceError):
    """An operator has cancelled a load."""

    def __init__(self, model: str) -> None:
        super().__init__(f"the load of {model!r} was cancelled by an operator")
        self.model = model


class LoadQueue:
    """Loads and unloads the models of a pool."""

    def __init__(self, state: PoolState, load: Load, on_complete: OnComplete) -> None:
        """Create an empty queue.

        Args:
            state: the state of the pool.
            load: starts a load; it may block, and its `MakeRoom` may be called from any thread.
            on_complete: called from a thread when a model's start has completed, or failed after answering requests.
        """
        self._state, self._load_model, self._on_complete = state, load, on_complete
        self._queue: list[PooledModel] = []
        self._has_thread = False

    def enqueue(self, model: PooledModel) -> None:
        """Add a model to the queue; called with the lock held."""
        if model.is_queued:
            return
        model.is_queued = True
        self._queue.append(model)
        if not self._has_thread:
            self._has_thread = True
            threading.Thread(target=self._work, name="load", daemon=True).start()

    def load(self, model: PooledModel) -> None:
        """Load a model and grant it to waiting requests.

        Raises:
            BaseException: the model cannot be loaded.
        """
        state, metrics = self._state, self._metrics(model)
        began_s = state.clock()  # after creating the metrics: the load time determines how long the model stays
        try:
            if not self._make_way(model):
                return
            loading = self._load_model(model.entry, partial(self._make_room, model))
            with state.changed:
                model.loading = loading
            loaded = loading.wait()
        except BaseException as error:
            if model.state is State.CANCELLING and not isinstance(error, LoadCancelled):  # its transfers were stopped
                cancelled = LoadCancelled(model.entry.name)
                self._fail(model, cancelled)
                raise cancelled from error
            self._fail(model, error)
            raise
        with state.changed:
            model.on(Event.LOADED)
            model.loaded, model.failure = loaded, None
            model.is_queued = model.is_requested = False
            model.ready_s = model.last_used_s = state.clock()
            model.load_s = model.ready_s - began_s
            model.num_loads += 1
            metrics.model_loads.labels("ready").inc()
            metrics.model_load_seconds.observe(model.load_s)
            model.num_open = 1  # held by its own start until that is complete
            state.grant_all(model)
            if model.older is not None:
                if model.older.is_open:
                    model.older.on(Event.LEAVE)
                self.begin_unload(model.older)
        threading.Thread(target=self._complete, args=(model, loading), name="complete", daemon=True).start()

    def begin_unload(self, model: PooledModel) -> Future[None]:
        """Unload a model that accepts no more requests, on a single thread for all callers; the lock is held.

        Returns:
            A future that is done once the model is unloaded, or loaded again.
        """
        if model.unloading is None:
            model.unloading = Future()
            threading.Thread(target=self._finish_unload, args=(model,), name="unload", daemon=True).start()
        return model.unloading

    def unload_when_idle(self, model: PooledModel) -> None:
        """Wait for a load and the last request, then unload the model unless it was reloaded meanwhile."""
        state = self._state
        with state.changed:
            state.changed.wait_for(lambda: not model.is_loading)
            num_loads = model.num_loads
            state.changed.wait_for(lambda: not model.is_in_memory or model.num_loads != num_loads or not model.num_open)
            if model.num_loads != num_loads:
                return
            if model.is_open:
                model.on(Event.LEAVE)
        self._unload(model)

    def _finish_unload(self, model: PooledModel) -> None:
        failure: BaseException | None = None
        unloading: Future[None] | None = None
        while unloading is None:
            try:
                self.unload_when_idle(model)
            except BaseException as error:
                failure = error
            with self._state.changed:
                # If the model was reloaded, another unload may have been requested.
                if failure is not None or not model.is_leaving:
                    unloading, model.unloading = model.unloading, None
        if failure is None:
            unloading.set_result(None)
        else:
            unloading.set_exception(failure)

    def _work(self) -> None:
        while (model := self._next()) is not None:
            try:
                self.load(model)
            except Exception as error:
                level = logging.INFO if isinstance(error, NobodyWaits | LoadCancelled | Draining) else logging.ERROR
                logger.log(level, "a model was not loaded", extra={"model": model.entry.name, "reason": str(error)})

    def _next(self) -> PooledModel | None:
        with self._state.changed:
            if self._queue and not self._state.is_closed:
                return self._queue.pop(0)
            self._has_thread = False
            return None

    def _make_way(self, model: PooledModel) -> bool:
        """Unload the model's stale version if any; return False if the model is ready after all."""
        state = self._state
        with state.changed:
            if model.is_open:
                model.is_queued = False
                state.grant_all(model)
                return False
        self.unload_when_idle(model)
        with state.changed:
            state.changed.wait_for(lambda: model.state is State.AVAILABLE)
            model.on(Event.LOAD)
        return True

    def _make_room(self, model: PooledModel, num_bytes: int, capacity_bytes: int) -> None:
        limits = self._state.limits
        capacity = Capacity(max_models=limits.max_models, num_bytes=capacity_bytes, yield_after_s=limits.yield_after_s)
        yielding: list[PooledModel] = []
        try:
            while (idle := self._seek_room(model, num_bytes, capacity, yielding)) is not None:
                for other in idle:
                    self._unload(other)
                    self._metrics(other).model_evictions.inc()
        except BaseException:
            with self._state.changed:
                for other in yielding:
                    if other.is_leaving:
                        other.on(Event.STAY)
            raise

    def _seek_room(
        self, model: PooledModel, num_bytes: int, capacity: Capacity, yielding: list[PooledModel]
    ) -> list[PooledModel] | None:
        """Reserve room and return None; otherwise return idle models to unload, or wait for a change.

        Args:
            model: the model to load.
            num_bytes: the memory that it needs.
            capacity: the limits for all models.
            yielding: the models that make room; the policy's choice is added.
        """
        state = self._state
        with state.changed:
            self._check_needed(model)
            now_s = state.clock()
            since_s = min((waiter.since_s for waiter in model.waiters), default=now_s)
            others = [other for other in state.versions if other is not model and other.num_bytes]
            newcomer = Newcomer(num_bytes=num_bytes, waiting_since_s=since_s)
            decision = decide(newcomer, [other.resident for other in others], capacity, now_s)
            if model.older is not None and model.older.is_open and isinstance(decision, Evict | Wait):
                decision = Evict((model.older.resident.name,))  # instead of another model
            match decision:
                case Enter():
                    model.num_bytes = num_bytes
                    self._metrics(model).model_memory_bytes.set(num_bytes)
                    return None
                case NeverFits(available_bytes, num_pinned):
                    remedy = f"{num_pinned} of at most {capacity.max_models} models have keep_loaded set."
                    raise DoesNotFit(needed_bytes=num_bytes, available_bytes=available_bytes, remedy=remedy)
                case Evict(names):
                    chosen = [other for other in others if other.resident.name in names]
                    yielding += chosen
                    for other in chosen:
                        if other.is_open:
                            other.on(Event.LEAVE)
                case Wait(until_s):
                    if not _idle(yielding):
                        state.changed.wait(None if until_s is None else until_s - now_s)
            return _idle(yielding)

    def _check_needed(self, model: PooledModel) -> None:
        if self._state.is_closed:
            raise Draining
        if model.state is State.CANCELLING:
            raise LoadCancelled(model.entry.name)
        if not model.waiters and not model.is_requested:
            raise NobodyWaits(f"no request waits for {model.entry.name!r} anymore")

    def _unload(self, model: PooledModel) -> None:
        with self._state.changed:
            if not model.is_leaving:
                return
            model.on(Event.UNLOAD)
            loaded, model.loaded = model.loaded, None
        assert loaded is not None, "a ready model is loaded"
        try:
            loaded.unload()
        finally:
            del loaded
            self._state.free(model.ready_s - model.load_s)  # before another model takes the memory
            with self._state.changed:
                model.on(Event.UNLOADED)
                model.num_bytes = 0
                current = self._state.models[model.entry.name]
                if current.older is model:
                    current.older = None
                self._clear_metrics(model)
                self._state.changed.notify_all()
        logger.info("unloaded", extra={"model": model.entry.name})

    def _complete(self, model: PooledModel, loading: Loading) -> None:
        """Wait for the rest of a start, which holds the model until it is complete."""
        state = self._state
        failure: BaseException | None = None
        try:
            loading.wait_until_complete()
        except BaseException as error:
            failure = error
        with state.changed:
            model.loading = None
            if model.state is State.CANCELLED:
                failure = None
            if failure is not None:
                model.failure = (str(failure), state.clock())
                if model.is_open:
                    model.on(Event.LEAVE)
            model.num_open -= 1
            state.changed.notify_all()
        del loading
        self._on_complete(model.entry, failure)
        if failure is not None:
            self.unload_when_idle(model)

    def _fail(self, model: PooledModel, error: BaseException) -> None:
        state = self._state
        with state.changed:
            model.on(Event.FAILED)
            model.num_bytes, model.loading = 0, None
            self._clear_metrics(model)
            is_cancelled = isinstance(error, NobodyWaits | LoadCancelled | Draining)
            self._metrics(model).model_loads.labels("cancelled" if is_cancelled else "failed").inc()
            model.is_queued = model.is_requested = False
            if isinstance(error, NobodyWaits) and model.waiters:  # one arrived meanwhile
                self.enqueue(model)
            elif not isinstance(error, NobodyWaits | LoadCancelled):
                model.failure = (str(error), state.clock())
            if not model.is_queued:
                refusal = error if isinstance(error, Draining) else ModelLoadFailed(model.entry.name, str(error))
                state.refuse_all(model, refusal)
            state.changed.notify_all()

    def _clear_metrics(self, model: PooledModel) -> None:
        """Clear a model's gauges unless another version of it is in memory."""
        if not any(version.num_bytes for version in self._state.models[model.entry.name].versions):
            self._metrics(model).clear_state()

    def _metrics(self, model: PooledModel) -> ModelMetrics:
        return self._state.metrics.of_model(model.entry.name)


def _idle(models: list[PooledModel]) -> list[PooledModel]:
    return [model for model in models if model.is_leaving and not model.num_open]
