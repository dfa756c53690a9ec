"""The pool of loaded models, for requests that use them and operators who load and unload them."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from service.api.backend import Lease, ModelState, ready_state
from service.api.served import ServedModel
from service.catalogue.catalogue import Catalogue
from service.catalogue.entry import ModelEntry
from service.engine.request import Adapter
from service.errors import (
    CheckpointError,
    Draining,
    InvalidParameter,
    MissingParameter,
    ModelLoadFailed,
    ModelNotLoaded,
    Overloaded,
    RequestError,
    SettingsError,
    UnknownModel,
)
from service.observability.metrics import Metrics
from service.server.pool.adapters import HostAdapters
from service.server.pool.load_queue import LoadQueue, OnComplete
from service.server.pool.policy import PoolLimits
from service.server.pool.pooled_model import Load, Loaded, PooledModel
from service.server.pool.report import model_report

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
        adapter_bytes: int = 0,
    ) -> None:
        """Create an empty pool; its methods are called on one event loop.

        Args:
            catalogue: the models that requests may name.
            load: see `LoadQueue`, as for the callbacks.
            limits: on loaded models and waiting requests.
            metrics: the metrics of the process.
            on_complete: called from a thread when a model's start has ended.
            on_unloaded: called from a thread when a model has been unloaded.
            adapter_bytes: host memory for adapters that take slots of models.
        """
        self._adapters = HostAdapters(adapter_bytes, limits.max_waiting)
        self._catalogue, self._limits = catalogue, limits
        self._created = int(time.time())
        self._queue = LoadQueue(load, limits, metrics, on_complete, on_unloaded)

    @property
    def loaded(self) -> list[Loaded]:
        """All models in memory; may be read from any thread."""
        versions = [residence.loaded for residence in self._queue.residences]
        return [loaded for loaded in versions if loaded is not None]

    def lease(self, name: str | None) -> Lease | None:
        """Return a lease of a loaded model, or None if the request has to wait for it. See `Backend.lease`."""
        entry = self._entry(name)
        if not entry.has_slot:
            return self._lease(entry)
        lease = self._lease(self._base(entry))
        adapter = None if lease is None else self._adapters.find(entry)
        if lease is None or adapter is None:
            if lease is not None:
                lease.release()
            return None
        return _with_adapter(lease, entry, adapter)

    def _base(self, entry: ModelEntry) -> ModelEntry:
        assert entry.base is not None, "an adapter in a slot has a base"
        return self._catalogue.find(entry.base)

    def _lease(self, entry: ModelEntry) -> Lease | None:
        model = self._queue.models.get(entry.name)
        if model is not None and model.entry.address != entry.address:
            model = self._begin_newer(entry)
        if model is None or model.answering is None or self._queue.is_closed:
            return None
        return self._queue.grant(model.answering)

    async def wait_for(self, name: str | None) -> Lease:
        """Return a lease of a model once it is loaded.

        Raises:
            UnknownModel, AmbiguousModel, MissingParameter: as `lease`.
            ModelLoadFailed: the model cannot be loaded.
            ModelNotLoaded: the model was not loaded in time.
            Overloaded: too many requests are waiting.
            Draining: the process is shutting down.
        """
        entry = self._entry(name)
        return await (self._wait_for_adapter(entry) if entry.has_slot else self._wait_for(entry))

    async def _wait_for_adapter(self, entry: ModelEntry) -> Lease:
        lease = await self._wait_for(self._base(entry))
        try:
            async with asyncio.timeout(self._limits.load_wait_s):
                adapter = await self._adapters.get(entry, _reader(lease, entry))
        except TimeoutError:
            lease.release()
            raise ModelNotLoaded(entry.name, "reading the adapter", retry_after_s=RETRY_AFTER_S) from None
        except BaseException:
            lease.release()
            raise
        return _with_adapter(lease, entry, adapter)

    async def _wait_for(self, entry: ModelEntry) -> Lease:
        model = self._model(entry)
        if model.answering is not None and not self._queue.is_closed:
            return self._queue.grant(model.answering)
        self._check_can_wait(model)
        waiter: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        model.waiters[waiter] = time.monotonic()
        self._queue.enqueue(model)
        try:
            async with asyncio.timeout(self._limits.load_wait_s):
                return await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                waiter.result().release()  # granted while the wait was cancelled
            if isinstance(error, TimeoutError):
                raise self._not_loaded(model) from None
            raise
        finally:
            if model.waiters.pop(waiter, None) is not None:
                self._queue.notify()

    async def preload(self, entry: ModelEntry) -> None:
        """Load a model before requests need it.

        Raises:
            BaseException: the model cannot be loaded.
        """
        model = self._model(entry)
        model.is_requested = True
        await self._queue.load(model)

    def begin_load(self, name: str) -> None:
        """Start to load a model without a waiting request. Raises as `lease`, and Draining."""
        entry = self._entry(name)
        if entry.has_slot:
            entry = self._base(entry)
        model = self._model(entry)
        if not model.is_open:
            model.failure = None
            self._check_can_wait(model)
            model.is_requested = True
            self._queue.enqueue(model)

    async def unload(self, name: str) -> bool:
        """Cancel a model's load, or unload it once its requests have finished; return whether it was in memory."""
        entry = self._entry(name)
        if entry.has_slot:
            return self._adapters.forget(entry)
        model = self._queue.models.get(entry.name)
        if model is None:
            return False
        model.is_requested = False
        was_loaded = bool(model.residences) or self._queue.is_queued(model)
        await asyncio.gather(*(self._queue.unload(residence) for residence in model.residences))
        return was_loaded

    async def add_adapter(self, name: str, path: str, *, in_place: bool = False) -> None:
        """Serve an adapter from the folder of the catalogue under a name, once it was read.

        Args:
            name: what requests will name.
            path: of its folder.
            in_place: whether it takes the place of one that was added under this name.

        Raises:
            InvalidParameter: the name is a model's or malformed, the path leads elsewhere, or the adapter is refused.
            RequestError: as `wait_for`.
        """
        try:
            entry = await asyncio.to_thread(self._catalogue.adapter_of, name, path, in_place=in_place)
        except (CheckpointError, SettingsError) as error:
            raise InvalidParameter(f"'lora_path': {error}", param="lora_path") from error
        if not entry.has_slot:
            message = "'lora_path': the base of the adapter has no slots for adapters."
            raise InvalidParameter(message, param="lora_path")
        try:
            lease = await self._wait_for_adapter(entry)
        except ModelLoadFailed as error:
            if error.model != name:  # its base cannot be loaded
                raise
            raise InvalidParameter(f"'lora_path': {error.reason}", param="lora_path") from error
        lease.release()
        # Only now, so that an adapter that is refused takes nobody's place.
        if (older := self._catalogue.add(entry, in_place=in_place)) is not None:
            self._adapters.forget(older)

    def remove_adapter(self, name: str) -> None:
        """End the serving of an adapter that was added; requests that use it end as usual.

        Raises:
            UnknownModel: no adapter of this name was added.
        """
        entry = self._catalogue.remove(name)
        if entry is None:
            raise UnknownModel(name, [])
        self._adapters.forget(entry)

    @property
    def adapter_bytes(self) -> int:
        """The host memory that adapters take."""
        return self._adapters.num_bytes

    def listed(self) -> Sequence[ModelState]:
        return [self._listed(entry) for entry in self._catalogue.entries]

    def report(self, name: str) -> dict[str, Any]:
        """Return the state of a model as a JSON object for operators; raises as `lease`."""
        return self._report(self._entry(name))

    def reports(self, *, is_used: bool = False) -> list[dict[str, Any]]:
        """Return the states of all models of the catalogue, or with `is_used` of those ever requested."""
        used = self._queue.models
        return [self._report(entry) for entry in self._catalogue.entries if entry.name in used or not is_used]

    def close(self) -> None:
        """Refuse new and waiting requests and cancel loads; models stay loaded for running requests."""
        self._adapters.close()
        self._queue.close()

    def _report(self, entry: ModelEntry) -> dict[str, Any]:
        if entry.has_slot:
            base = self._queue.models.get(self._base(entry).name)
            is_ready = base is not None and base.answering is not None and self._adapters.is_here(entry)
            return model_report(entry, None, None) | {"state": "ready" if is_ready else "available"}
        model = self._queue.models.get(entry.name)
        return model_report(entry, model, None if model is None else self._queue.metrics_of(model))

    def _entry(self, name: str | None) -> ModelEntry:
        if name is not None:
            return self._catalogue.find(name)
        if len(self._catalogue.entries) != 1:
            raise MissingParameter("model")
        return self._catalogue.entries[0]

    def _model(self, entry: ModelEntry) -> PooledModel:
        """Return a model, which is loaded next in this version; a load that is running goes on."""
        model = self._queue.models.setdefault(entry.name, PooledModel(entry))
        if not model.is_loading:
            model.entry = entry
        return model

    def _begin_newer(self, entry: ModelEntry) -> PooledModel:
        """Start to load the newer version of a model unless that has just failed."""
        model = self._model(entry)
        is_coming = self._queue.is_closed or self._queue.is_queued(model)
        if not (is_coming or model.is_open or self._has_just_failed(model)):
            model.is_requested = True
            self._queue.enqueue(model)
        return model

    def _has_just_failed(self, model: PooledModel) -> bool:
        return model.failure is not None and time.monotonic() - model.failure[1] < RETRY_AFTER_S

    def _check_can_wait(self, model: PooledModel) -> None:
        if self._queue.is_closed:
            raise Draining
        if model.failure is not None and self._has_just_failed(model):
            reason, _, shown = model.failure
            raise ModelLoadFailed(model.entry.name, reason, shown)
        num_waiting = sum(len(each.waiters) for each in self._queue.models.values())
        if num_waiting >= self._limits.max_waiting:
            raise Overloaded(running=num_waiting, limit=self._limits.max_waiting)

    def _not_loaded(self, model: PooledModel) -> RequestError:
        loading = None if model.newest is None else model.newest.loading
        summary = "waiting for memory" if loading is None else loading.summary()
        left_s = None if loading is None else loading.progress().get("estimated_seconds_left")
        return ModelNotLoaded(model.entry.name, summary, retry_after_s=max(1, round(left_s or 5)))

    def _listed(self, entry: ModelEntry) -> ModelState:
        if entry.has_slot:
            base = self._listed(self._base(entry))
            is_here = base.state == "ready" and self._adapters.is_here(entry)
            state, error = "ready" if is_here else "available", self._adapters.error_of(entry)
            facts = dict(base.facts) if error is None else {**base.facts, "error": error}
            return replace(base, names=entry.names, state=state, parent=entry.base, facts=facts)
        model = self._queue.models.get(entry.name)
        answering = None if model is None else model.answering
        if answering is not None and answering.loaded is not None:
            return replace(ready_state(answering.loaded.served), parent=entry.base)
        newest = None if model is None else model.newest
        known = None if model is None else model.known
        facts = {} if known is None else dict(known.facts)
        is_loading = newest is not None and newest.is_loading
        if newest is not None and is_loading and newest.loading is not None:
            facts["progress"] = newest.loading.progress()
        elif not is_loading and model is not None and model.failure is not None and model.failure[2] is not None:
            facts["error"] = model.failure[2]
        return ModelState(
            names=entry.names,
            created=self._created,
            state="loading" if is_loading else "available",
            max_model_len=entry.max_model_len if known is None else known.max_model_len,
            facts=facts,
            parent=entry.base,
        )


def _reader(lease: Lease, entry: ModelEntry) -> Callable[[str, str], Adapter]:
    """Return what reads adapters for a model.

    Raises:
        ModelLoadFailed: the model has no slots for adapters.
    """
    read = lease.model.read_adapter if isinstance(lease.model, ServedModel) else None
    if read is None:
        raise ModelLoadFailed(entry.name, f"{entry.base!r} has no slots for adapters")
    return read


def _with_adapter(lease: Lease, entry: ModelEntry, adapter: Adapter) -> Lease:
    """Return the lease of a model as that of the model that an adapter makes of it."""
    model = lease.model
    assert isinstance(model, ServedModel), "what has slots generates text"
    return Lease(model.with_adapter(entry.names, adapter, entry.defaults), lease.release)
