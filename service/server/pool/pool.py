"""The pool of loaded models, for requests that use them and operators who load and unload them."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from service.api.backend import Lease, ModelState, ready_state
from service.catalogue.catalogue import Catalogue
from service.catalogue.entry import ModelEntry
from service.errors import Draining, MissingParameter, ModelLoadFailed, ModelNotLoaded, Overloaded, RequestError
from service.observability.metrics import Metrics
from service.server.pool.load_queue import LoadQueue, OnComplete
from service.server.pool.pooled_model import Event, Load, Loaded, PooledModel, State, Waiter
from service.server.pool.report import model_report
from service.server.pool.state import PoolLimits, PoolState, granted

# How long to wait before retrying a failed load.
RETRY_AFTER_S = 10


class ModelPool:
    """The models of a process; a single model is a pool of one that is never evicted."""

    def __init__(
        self,
        catalogue: Catalogue,
        load: Load,
        limits: PoolLimits,
        metrics: Metrics,
        *,
        on_complete: OnComplete = lambda *_: None,
        on_unloaded: Callable[[float], None] = lambda begun_s: None,
    ) -> None:
        """Create an empty pool; see `LoadQueue` and `PoolState.free` for the callbacks."""
        self._catalogue = catalogue
        self._created = int(time.time())
        self._state = PoolState(limits, metrics, on_unloaded)
        self._queue = LoadQueue(self._state, load, on_complete)

    @property
    def loaded(self) -> list[Loaded]:
        with self._state.changed:
            versions = [version.loaded for version in self._state.versions]
        return [loaded for loaded in versions if loaded is not None]

    def lease(self, name: str | None) -> Lease | None:
        """Return a lease of a loaded model, or None if the request has to wait for it. See `Backend.lease`."""
        entry = self._entry(name)
        with self._state.changed:
            model = self._state.models.get(entry.name)
            if model is not None and model.entry.address != entry.address:
                model = self._begin_newer(entry)
            if model is None or not model.answering.is_open:
                return None
            return self._state.grant(model.answering)

    async def wait_for(self, name: str | None) -> Lease:
        """Return a lease of a model once it is loaded.

        Raises:
            UnknownModel, AmbiguousModel, MissingParameter: as `lease`.
            ModelLoadFailed: the model cannot be loaded.
            ModelNotLoaded: the model was not loaded in time.
            Overloaded: too many requests are waiting.
            Draining: the process is shutting down.
        """
        entry, state = self._entry(name), self._state
        loop = asyncio.get_running_loop()
        with state.changed:
            model = self._model(entry)
            if model.answering.is_open:
                return state.grant(model.answering)
            self._check_can_wait(model)
            waiter = Waiter(loop, loop.create_future(), state.clock())
            model.waiters.append(waiter)
            self._queue.enqueue(model)
        try:
            async with asyncio.timeout(state.limits.load_wait_s):
                return await granted(waiter)
        except TimeoutError:
            raise self._not_loaded(model) from None
        finally:
            with state.changed:
                if waiter in model.waiters:
                    model.waiters.remove(waiter)
                    state.changed.notify_all()

    def preload(self, entry: ModelEntry) -> None:
        """Load a model on this thread, before requests need it.

        Raises:
            BaseException: the model cannot be loaded.
        """
        with self._state.changed:
            model = self._model(entry)
            model.is_requested = model.is_queued = True
        self._queue.load(model)

    def begin_load(self, name: str) -> None:
        """Start to load a model without a waiting request. Raises as `lease`, and Draining."""
        entry = self._entry(name)
        with self._state.changed:
            model = self._model(entry)
            if not model.is_open:
                model.failure = None
                self._check_can_wait(model)
                model.is_requested = True
                self._queue.enqueue(model)

    async def unload(self, name: str) -> bool:
        """Cancel a model's load, or unload it once its requests have finished; return whether it was in memory."""
        entry = self._entry(name)
        with self._state.changed:
            model = self._state.models.setdefault(entry.name, PooledModel(entry))
            model.is_requested = False
            was_loaded = model.is_queued or any(version.state is not State.AVAILABLE for version in model.versions)
            if model.is_loading:
                model.on(Event.CANCEL)
                if model.loading is not None:
                    model.loading.cancel()
            for version in model.versions:
                if version.is_open:
                    version.on(Event.LEAVE)
            self._state.changed.notify_all()
            unloading = [self._queue.begin_unload(version) for version in model.versions]
        for future in unloading:
            # A disconnected client must not cancel the unload for others.
            await asyncio.shield(asyncio.wrap_future(future))
        return was_loaded

    def listed(self) -> Sequence[ModelState]:
        with self._state.changed:
            return [self._listed(entry) for entry in self._catalogue.entries]

    def report(self, name: str) -> dict[str, Any]:
        """Return the state of a model as a JSON object for operators; raises as `lease`."""
        return self._report(self._entry(name))

    def reports(self, *, is_used: bool = False) -> list[dict[str, Any]]:
        """Return the states of all models of the catalogue, or with `is_used` of those ever requested."""
        used = self._state.models
        return [self._report(entry) for entry in self._catalogue.entries if entry.name in used or not is_used]

    def close(self) -> None:
        """Refuse new and waiting requests and cancel loads; models stay loaded for running requests."""
        with self._state.changed:
            self._state.is_closed = True
            for model in self._state.versions:
                self._state.refuse_all(model, Draining())
                if model.is_open:
                    model.on(Event.LEAVE)
                if model.is_loading and model.loading is not None:
                    model.loading.cancel()
            self._state.changed.notify_all()

    def _report(self, entry: ModelEntry) -> dict[str, Any]:
        state = self._state
        with state.changed:
            model = state.models.get(entry.name)
            metrics = None if model is None else state.metrics.of_model(entry.name)
            return model_report(entry, model, metrics, state.clock())

    def _entry(self, name: str | None) -> ModelEntry:
        if name is not None:
            return self._catalogue.find(name)
        if len(self._catalogue.entries) != 1:
            raise MissingParameter("model")
        return self._catalogue.entries[0]

    def _model(self, entry: ModelEntry) -> PooledModel:
        """Return the newest version of a model. The lock is held."""
        model = self._state.models.setdefault(entry.name, PooledModel(entry))
        if model.entry.address == entry.address or model.is_loading:
            return model
        if model.is_open:
            # The old version serves requests until the new one does, or until the policy evicts it.
            model = self._state.models[entry.name] = PooledModel(entry, older=model)
        model.entry = entry
        return model

    def _begin_newer(self, entry: ModelEntry) -> PooledModel:
        """Start to load the newer version of a model unless that has just failed. The lock is held."""
        model = self._model(entry)
        if not (self._state.is_closed or model.is_open or model.is_queued or self._has_just_failed(model)):
            model.is_requested = True
            self._queue.enqueue(model)
        return model

    def _has_just_failed(self, model: PooledModel) -> bool:
        return model.failure is not None and self._state.clock() - model.failure[1] < RETRY_AFTER_S

    def _check_can_wait(self, model: PooledModel) -> None:
        state = self._state
        if state.is_closed:
            raise Draining
        if model.failure is not None and self._has_just_failed(model):
            raise ModelLoadFailed(model.entry.name, model.failure[0])
        if state.num_waiting >= state.limits.max_waiting:
            raise Overloaded(running=state.num_waiting, limit=state.limits.max_waiting)

    def _not_loaded(self, model: PooledModel) -> RequestError:
        loading = model.loading
        summary = "waiting for memory" if loading is None else loading.summary()
        left_s = None if loading is None else loading.progress().get("estimated_seconds_left")
        return ModelNotLoaded(model.entry.name, summary, retry_after_s=max(1, round(left_s or 5)))

    def _listed(self, entry: ModelEntry) -> ModelState:
        model = self._state.models.get(entry.name)
        answering = None if model is None else model.answering
        if model is not None and answering is not None and answering.is_open and answering.loaded is not None:
            model.known = replace(ready_state(answering.loaded.served), parent=entry.base)
            return model.known
        known = None if model is None else model.known
        facts = {} if known is None else dict(known.facts)
        if model is not None and model.is_loading and model.loading is not None:
            facts["progress"] = model.loading.progress()
        return ModelState(
            names=entry.names,
            created=self._created,
            state="loading" if model is not None and model.is_loading else "available",
            max_model_len=entry.max_model_len if known is None else known.max_model_len,
            facts=facts,
            parent=entry.base,
        )
