"""The load queue: one model at a time, so each gets the full bandwidth and none sits half loaded.

All state belongs to the event loop. What blocks runs on threads, which change none of it: the parts of a load, an
unload. A load waits for room before any weights are read; the policy decides which models leave. A model that leaves is
unloaded once its last request has finished.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

from service.api.backend import Lease, ready_state
from service.catalogue.entry import ModelEntry
from service.errors import CheckpointError, DoesNotFit, Draining, ModelLoadFailed, RequestError, ServiceError
from service.observability.metrics import Metrics
from service.observability.model_metrics import ModelMetrics
from service.server.pool.policy import Capacity, Enter, Evict, NeverFits, Newcomer, PoolLimits, Wait, decide
from service.server.pool.pooled_model import Event, Load, Loaded, Loading, PooledModel, Residence, State

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

    def __init__(
        self,
        load: Load,
        limits: PoolLimits,
        metrics: Metrics,
        on_complete: OnComplete,
        on_unloaded: Callable[[float], None],
    ) -> None:
        """Create an empty queue.

        Args:
            load: starts a load; it may block, and its `MakeRoom` may be called from any thread but the event loop's.
            limits: on loaded models and waiting requests.
            metrics: count loads, their seconds and evictions by model.
            on_complete: called from a thread when a model's start has completed, or failed after answering requests.
            on_unloaded: called from a thread, with the time when its load began, when only reference cycles keep an
                unloaded model alive.
        """
        self._load_model, self._limits, self._metrics = load, limits, metrics
        self._on_complete, self._on_unloaded = on_complete, on_unloaded
        self._queue: list[PooledModel] = []  # the first is being loaded
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()  # set for a moment at each change that a load or an operator may wait for
        self.models: dict[str, PooledModel] = {}  # all that were ever requested
        self.is_closed = False  # whether new and waiting requests are refused

    @property
    def residences(self) -> Iterator[Residence]:
        """All versions of all models."""
        return (residence for model in list(self.models.values()) for residence in list(model.residences))

    def is_queued(self, model: PooledModel) -> bool:
        """Return whether a model is being loaded, or will be."""
        return model in self._queue

    def enqueue(self, model: PooledModel) -> None:
        """Load a model after those that are in the queue; its requests get it, or an error."""
        if model not in self._queue:
            self._queue.append(model)
            if len(self._queue) == 1:
                self._spawn(self._work())

    async def load(self, model: PooledModel) -> None:
        """Load a model and grant it to waiting requests, outside of the queue.

        Raises:
            BaseException: the model cannot be loaded.
        """
        metrics = self.metrics_of(model)
        if (residence := await self._begin(model)) is None:
            return
        try:
            make_room = partial(self._wait_for_room, asyncio.get_running_loop(), model, residence)
            loading = residence.loading = await _on_thread(
                "load", partial(self._load_model, residence.entry, make_room)
            )
            loaded = await _on_thread("load", loading.wait)
        except asyncio.CancelledError:  # the process ends
            raise
        except BaseException as error:
            if residence.state is State.CANCELLING and not isinstance(error, LoadCancelled):
                cancelled = LoadCancelled(model.entry.name)  # its transfers were stopped
                self._fail(model, residence, cancelled)
                raise cancelled from error
            self._fail(model, residence, error)
            raise
        was_cancelled = residence.state is State.CANCELLING
        residence.on(Event.LOADED)
        residence.loaded = loaded
        residence.ready_s = residence.last_used_s = time.monotonic()
        residence.num_open = 1  # held by its own start until that is complete
        model.failure, model.is_requested, model.last = None, False, residence
        metrics.model_loads.labels("ready").inc()
        metrics.model_load_seconds.observe(residence.load_s)
        self._grant_all(model, residence)
        for older in model.residences[:-1]:
            self.leave(older)
        self._spawn(self._complete(model, residence, loading, was_cancelled=was_cancelled))
        self.notify()

    def grant(self, residence: Residence) -> Lease:
        """Let a request hold what is ready."""
        assert residence.loaded is not None, "what is ready is loaded"
        residence.num_open += 1
        residence.last_used_s = time.monotonic()
        return Lease(residence.loaded.served, partial(self._release, residence))

    def refuse(self, model: PooledModel, error: RequestError) -> None:
        """Refuse all requests that wait for a model."""
        waiters, model.waiters = model.waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def leave(self, residence: Residence) -> None:
        """Unload what is in memory once its last request has finished, and let no other begin."""
        if residence.state is State.READY:
            residence.on(Event.LEAVE)
        if residence.state is State.LEAVING and not residence.num_open:
            residence.on(Event.UNLOAD)
            self._spawn(self._unload(self.models[residence.entry.name], residence))

    async def unload(self, residence: Residence) -> None:
        """Cancel a load, or unload what it has loaded, and wait for that.

        Raises:
            BaseException: it cannot be unloaded.
        """
        if residence.is_loading:
            residence.on(Event.CANCEL)
            if residence.loading is not None:
                residence.loading.cancel()
        self.notify()
        while not residence.gone.done():
            self.leave(residence)  # again if it was to make room for a model that is not loaded after all
            await self._changed.wait()
        residence.gone.result()

    def close(self) -> None:
        """Refuse waiting requests and cancel loads; models stay loaded for running requests."""
        self.is_closed = True
        for model in self.models.values():
            self.refuse(model, Draining())
        for residence in self.residences:
            if residence.is_loading and residence.loading is not None:
                residence.loading.cancel()
        self.notify()

    def notify(self) -> None:
        """Let loads look again at whether there is room, and whether they are needed."""
        self._changed.set()
        self._changed.clear()

    def metrics_of(self, model: PooledModel) -> ModelMetrics:
        return self._metrics.of_model(model.entry.name)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _release(self, residence: Residence) -> None:
        residence.last_used_s = time.monotonic()
        self._end_hold(residence)

    def _end_hold(self, residence: Residence) -> None:
        residence.num_open -= 1
        if not residence.num_open:
            if residence.state is State.LEAVING:
                self.leave(residence)
            self.notify()

    async def _work(self) -> None:
        while self._queue and not self.is_closed:
            model = self._queue[0]
            try:
                await self.load(model)
            except Exception as error:
                level = logging.INFO if isinstance(error, NobodyWaits | LoadCancelled | Draining) else logging.ERROR
                logger.log(level, "a model was not loaded", extra={"model": model.entry.name, "reason": str(error)})
            self._queue.pop(0)
            if model.waiters:  # one arrived while the load ended because none waited
                self._queue.append(model)

    async def _begin(self, model: PooledModel) -> Residence | None:
        """Return the residence of a load that begins once a leaving version is gone; None if that stays after all."""
        if (newest := model.newest) is not None:
            while newest.state in (State.LEAVING, State.UNLOADING):
                await self._changed.wait()
            if model.is_open:
                self._grant_all(model, newest)
                return None
        number = 1 if model.last is None else model.last.number + 1
        residence = Residence(model.entry, number, time.monotonic(), asyncio.get_running_loop().create_future())
        model.residences.append(residence)
        return residence

    def _grant_all(self, model: PooledModel, residence: Residence) -> None:
        waiters, model.waiters = model.waiters, {}
        for waiter in waiters:
            if not waiter.done():  # else the request has ended
                waiter.set_result(self.grant(residence))

    def _wait_for_room(
        self,
        loop: asyncio.AbstractEventLoop,
        model: PooledModel,
        residence: Residence,
        num_bytes: int,
        capacity_bytes: int,
    ) -> None:
        """Wait on a thread until there is room; the `MakeRoom` of a load."""
        asyncio.run_coroutine_threadsafe(self._make_room(model, residence, num_bytes, capacity_bytes), loop).result()

    async def _make_room(self, model: PooledModel, residence: Residence, num_bytes: int, capacity_bytes: int) -> None:
        """Reserve room for a load, having others leave if there is none.

        Raises:
            Draining, LoadCancelled, NobodyWaits: the load is not needed anymore.
            DoesNotFit: there will never be room.
            BaseException: a model cannot be unloaded.
        """
        limits = self._limits
        capacity = Capacity(max_models=limits.max_models, num_bytes=capacity_bytes, yield_after_s=limits.yield_after_s)
        evicted: list[Residence] = []
        try:
            while True:
                self._check_needed(model, residence)
                for other in [other for other in evicted if other.gone.done()]:
                    evicted.remove(other)
                    other.gone.result()
                    self._metrics.of_model(other.entry.name).model_evictions.inc()
                now_s = time.monotonic()
                newcomer = Newcomer(num_bytes=num_bytes, waiting_since_s=min(model.waiters.values(), default=now_s))
                others = [other for other in self.residences if other is not residence and other.num_bytes]
                decision = decide(newcomer, [other.resident for other in others], capacity, now_s)
                older = model.answering
                if older is not None and isinstance(decision, Evict | Wait):
                    decision = Evict((older.resident.name,))  # instead of another model
                match decision:
                    case Enter():
                        residence.num_bytes = num_bytes
                        self.metrics_of(model).model_memory_bytes.set(num_bytes)
                        return
                    case NeverFits(available_bytes, num_pinned):
                        remedy = f"{num_pinned} of at most {capacity.max_models} models have keep_loaded set."
                        raise DoesNotFit(needed_bytes=num_bytes, available_bytes=available_bytes, remedy=remedy)
                    case Evict(names):
                        for other in [other for other in others if other.resident.name in names]:
                            evicted.append(other)
                            self.leave(other)
                    case Wait(until_s):
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(None if until_s is None else until_s - now_s):
                                await self._changed.wait()
        except BaseException:
            for other in evicted:
                if other.state is State.LEAVING:
                    other.on(Event.STAY)
            raise

    def _check_needed(self, model: PooledModel, residence: Residence) -> None:
        if self.is_closed:
            raise Draining
        if residence.state is State.CANCELLING:
            raise LoadCancelled(model.entry.name)
        if not model.waiters and not model.is_requested:
            raise NobodyWaits(f"no request waits for {model.entry.name!r} anymore")

    async def _complete(
        self, model: PooledModel, residence: Residence, loading: Loading, *, was_cancelled: bool
    ) -> None:
        """Wait for the rest of a start, which holds the model until it is complete."""
        failure: BaseException | None = None
        try:
            await _on_thread("complete", loading.wait_until_complete)
        except asyncio.CancelledError:  # the process ends
            raise
        except BaseException as error:
            failure = None if was_cancelled else error
        del loading  # it refers to the weights
        residence.loading = None
        if failure is not None:
            model.failure = (str(failure), time.monotonic(), shown_reason(failure))
            self.leave(residence)
        self._end_hold(residence)
        await _on_thread("complete", partial(self._on_complete, residence.entry, failure))

    async def _unload(self, model: PooledModel, residence: Residence) -> None:
        assert residence.loaded is not None, "what leaves is loaded"
        model.known = ready_state(residence.loaded.served)
        # The thread takes the only reference, so that the memory is free before another model takes it.
        loaded, residence.loaded = [residence.loaded], None
        failure: BaseException | None = None
        try:
            await _on_thread("unload", partial(_unload, loaded, partial(self._on_unloaded, residence.began_s)))
        except asyncio.CancelledError:  # the process ends
            raise
        except BaseException as error:
            failure = error
        self._end(model, residence, Event.UNLOADED, failure)
        if failure is None:
            logger.info("unloaded", extra={"model": residence.entry.name})

    def _fail(self, model: PooledModel, residence: Residence, error: BaseException) -> None:
        is_cancelled = isinstance(error, NobodyWaits | LoadCancelled | Draining)
        model.is_requested = False
        if not isinstance(error, NobodyWaits | LoadCancelled):
            model.failure = (str(error), time.monotonic(), shown_reason(error))
        if not isinstance(error, NobodyWaits):
            failed = ModelLoadFailed(model.entry.name, str(error), shown_reason(error))
            self.refuse(model, error if isinstance(error, Draining) else failed)
        self._end(model, residence, Event.FAILED)
        self.metrics_of(model).model_loads.labels("cancelled" if is_cancelled else "failed").inc()

    def _end(
        self, model: PooledModel, residence: Residence, event: Event, failure: BaseException | None = None
    ) -> None:
        """Give back the room of what is gone; the model's gauges are cleared unless another version is in memory."""
        residence.on(event)
        residence.num_bytes, residence.loading = 0, None
        model.residences.remove(residence)
        if not any(other.num_bytes for other in model.residences):
            self.metrics_of(model).clear_state()
        if failure is None:
            residence.gone.set_result(None)
        else:
            residence.gone.set_exception(failure)
            residence.gone.exception()  # nobody has to ask for it
        self.notify()


def shown_reason(error: BaseException) -> str | None:
    """Return what clients see of the failure of a load; None if that is nothing."""
    return error.shown if isinstance(error, CheckpointError) else None


def _unload(loaded: list[Loaded], on_unloaded: Callable[[], None]) -> None:
    try:
        loaded.pop().unload()
    finally:
        on_unloaded()


async def _on_thread[Result](name: str, call: Callable[[], Result]) -> Result:
    """Return the result of a call on a daemon thread, which unlike an executor's does not delay an exit."""
    future: Future[Result] = Future()

    def run() -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wrap_future(future)
