"""The pool: loaded models by name, for requests that hold them and operators who load and unload them."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from service.api.backend import Lease, ModelState, ready_state
from service.catalogue.catalogue import Catalogue
from service.catalogue.entry import ModelEntry
from service.errors import Draining, MissingParameter, ModelLoadFailed, ModelNotLoaded, Overloaded, RequestError
from service.observability.metrics import Metrics
from service.server.pool.line import LoadingLine
from service.server.pool.report import model_report
from service.server.pool.residence import Load, Loaded, Residence, Waiter
from service.server.pool.state import PoolLimits, PoolState, granted

if TYPE_CHECKING:
    from service.server.pool.line import OnComplete

# A model that could not be loaded is not tried again before.
RETRY_AFTER_S = 10


class ModelPool:
    """The models of a process; a single model is a pool of one that stays loaded."""

    def __init__(
        self,
        catalogue: Catalogue,
        load: Load,
        limits: PoolLimits,
        metrics: Metrics,
        *,
        on_complete: "OnComplete" = lambda *_: None,
        on_unloaded: Callable[[float], None] = lambda begun_s: None,
    ) -> None:
        """Create a pool that has loaded nothing; see `LoadingLine` and `PoolState.free` for what is called."""
        self._catalogue = catalogue
        self._created = int(time.time())
        self._state = PoolState(limits, metrics, on_unloaded)
        self._line = LoadingLine(self._state, load, on_complete)

    @property
    def loaded(self) -> list[Loaded]:
        """The models in memory."""
        with self._state.changed:
            found = [version.loaded for version in self._state.versions]
        return [loaded for loaded in found if loaded is not None]

    def lease(self, name: str | None) -> Lease | None:
        """Return a loaded model; None if it has to be waited for. See `Backend.lease`."""
        entry = self._entry(name)
        with self._state.changed:
            residence = self._state.residences.get(entry.name)
            if residence is not None and residence.entry.uri != entry.uri:
                residence = self._begin_newer(entry)
            if residence is None or not residence.answering.is_open:
                return None
            return self._state.grant(residence.answering)

    async def wait_for(self, name: str | None) -> Lease:
        """Return a model once it is loaded.

        Raises:
            UnknownModel, AmbiguousModel, MissingParameter: as `lease`.
            ModelLoadFailed: it cannot be loaded.
            ModelNotLoaded: it did not come in time.
            Overloaded: too many requests wait.
            Draining: the process is about to end.
        """
        entry, state = self._entry(name), self._state
        loop = asyncio.get_running_loop()
        with state.changed:
            residence = self._residence(entry)
            if residence.answering.is_open:
                return state.grant(residence.answering)
            self._check_can_wait(residence)
            waiter = Waiter(loop, loop.create_future(), state.clock())
            residence.waiters.append(waiter)
            self._line.join(residence)
        try:
            async with asyncio.timeout(state.limits.load_wait_s):
                return await granted(waiter)
        except TimeoutError:
            raise self._not_loaded(residence) from None
        finally:
            with state.changed:
                if waiter in residence.waiters:
                    residence.waiters.remove(waiter)
                    state.changed.notify_all()

    def preload(self, entry: ModelEntry) -> None:
        """Load a model on this thread, before requests name it.

        Raises:
            BaseException: why it cannot be loaded.
        """
        with self._state.changed:
            residence = self._residence(entry)
            residence.is_requested = residence.is_in_line = True
        self._line.load(residence)

    def begin_load(self, name: str) -> None:
        """Load a model though no request waits for it; returns at once. Raises as `lease`, and Draining."""
        entry = self._entry(name)
        with self._state.changed:
            residence = self._residence(entry)
            if not residence.is_open:
                residence.failure = None
                self._check_can_wait(residence)
                residence.is_requested = True
                self._line.join(residence)

    async def unload(self, name: str) -> bool:
        """Unload a model once its requests have ended; end its load. Return whether it was in memory or loading."""
        entry = self._entry(name)
        with self._state.changed:
            residence = self._state.residences.setdefault(entry.name, Residence(entry))
            residence.is_requested, residence.is_cancelled = False, residence.state == "loading"
            was_loaded = residence.is_in_line or any(version.state != "available" for version in residence.versions)
            if residence.state == "loading" and residence.loading is not None:
                residence.loading.cancel()
            for version in residence.versions:
                version.is_leaving = version.is_leaving or version.state == "ready"
            self._state.changed.notify_all()
            unloading = [self._line.begin_unload(version) for version in residence.versions]
        for future in unloading:
            # A client that is gone ends its own wait alone.
            await asyncio.shield(asyncio.wrap_future(future))
        return was_loaded

    def listed(self) -> Sequence[ModelState]:
        """Return every model of the catalogue."""
        with self._state.changed:
            return [self._listed(entry) for entry in self._catalogue.entries]

    def report(self, name: str) -> dict[str, Any]:
        """Return the state of one model as a JSON object for an operator; raises as `lease`."""
        return self._report(self._entry(name))

    def reports(self, *, is_used: bool = False) -> list[dict[str, Any]]:
        """Return the states of all models of the catalogue; `is_used`: of those that were ever asked for."""
        used = self._state.residences
        return [self._report(entry) for entry in self._catalogue.entries if entry.name in used or not is_used]

    def close(self) -> None:
        """Refuse new requests and those that wait, and end loads; models stay in memory for what they answer."""
        with self._state.changed:
            self._state.is_closed = True
            for residence in self._state.versions:
                self._state.refuse_all(residence, Draining())
                residence.is_leaving = residence.state == "ready"
                if residence.state == "loading" and residence.loading is not None:
                    residence.loading.cancel()
            self._state.changed.notify_all()

    def _report(self, entry: ModelEntry) -> dict[str, Any]:
        state = self._state
        with state.changed:
            residence = state.residences.get(entry.name)
            metrics = None if residence is None else state.metrics.of_model(entry.name)
            return model_report(entry, residence, metrics, state.clock())

    def _entry(self, name: str | None) -> ModelEntry:
        if name is not None:
            return self._catalogue.find(name)
        if len(self._catalogue.entries) != 1:
            raise MissingParameter("model")
        return self._catalogue.entries[0]

    def _residence(self, entry: ModelEntry) -> Residence:
        """Return what is known of a model, in its newest version. The lock is held."""
        residence = self._state.residences.setdefault(entry.name, Residence(entry))
        if residence.entry.uri == entry.uri or residence.state == "loading":
            return residence
        if residence.is_open:
            # It answers until the newer version does, or until the policy takes the room that it has.
            residence = self._state.residences[entry.name] = Residence(entry, older=residence)
        residence.entry = entry
        return residence

    def _begin_newer(self, entry: ModelEntry) -> Residence:
        """Begin to load the newer version of a model, unless that has just failed. The lock is held."""
        residence = self._residence(entry)
        if not (self._state.is_closed or residence.is_open or residence.is_in_line or self._has_just_failed(residence)):
            residence.is_requested = True
            self._line.join(residence)
        return residence

    def _has_just_failed(self, residence: Residence) -> bool:
        return residence.failure is not None and self._state.clock() - residence.failure[1] < RETRY_AFTER_S

    def _check_can_wait(self, residence: Residence) -> None:
        state = self._state
        if state.is_closed:
            raise Draining
        if residence.failure is not None and self._has_just_failed(residence):
            raise ModelLoadFailed(residence.entry.name, residence.failure[0])
        if state.num_waiting >= state.limits.max_waiting:
            raise Overloaded(running=state.num_waiting, limit=state.limits.max_waiting)

    def _not_loaded(self, residence: Residence) -> RequestError:
        loading = residence.loading
        summary = "it waits for room" if loading is None else loading.summary()
        left_s = None if loading is None else loading.progress().get("estimated_seconds_left")
        return ModelNotLoaded(residence.entry.name, summary, retry_after_s=max(1, round(left_s or 5)))

    def _listed(self, entry: ModelEntry) -> ModelState:
        residence = self._state.residences.get(entry.name)
        answering = None if residence is None else residence.answering
        if residence is not None and answering is not None and answering.is_open and answering.loaded is not None:
            residence.known = ready_state(answering.loaded.served)
            return residence.known
        known = None if residence is None else residence.known
        facts = {} if known is None else dict(known.facts)
        if residence is not None and residence.state == "loading" and residence.loading is not None:
            facts["progress"] = residence.loading.progress()
        return ModelState(
            names=entry.names,
            created=self._created,
            state="loading" if residence is not None and residence.state == "loading" else "available",
            max_model_len=entry.max_model_len if known is None else known.max_model_len,
            facts=facts,
        )
