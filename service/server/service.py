"""One process as a whole: a start under way, then models that answer, then a drain."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp

from service.errors import Draining, EngineStopped, NotReady, ServiceError
from service.observability.metrics import Metrics
from service.server.key_file import open_keys
from service.server.watchdog import watch
from service.settings import Settings
from service.start.imports import quick_fastapi_import
from service.start.progress import Phase, StartProgress

if TYPE_CHECKING:
    from service.api.backend import Lease, ModelState
    from service.api.served import Served
    from service.catalogue.entry import ModelEntry
    from service.observability.tracing import Tracer
    from service.server.assembly import Api
    from service.server.pool.loader import StartLoading
    from service.server.pool.opening import OpenedPool
    from service.server.pool.pool import ModelPool
    from service.server.pool.pooled_model import Loaded
    from service.start.context import StartContext

logger = logging.getLogger(__name__)


class Service:
    """The state behind the port; the API's `Backend`. The start's threads write it, the event loop reads it."""

    def __init__(self, settings: Settings, picture: Path | None = None) -> None:
        """Create a service that has not started.

        Args:
            settings: what to serve and how.
            picture: the file to draw the start's timeline into, if any.

        Raises:
            SettingsError: the file of keys is invalid.
        """
        self.settings = settings
        self.keys = open_keys(settings)
        self.metrics = Metrics(has_vllm_names=settings.metrics_compat == "vllm")
        self.start_progress = StartProgress(self.metrics)
        self.error: BaseException | None = None  # why the process must end
        self.is_draining = False
        self.num_early = 0  # requests that came before the start was decided, and are not answered yet
        self.decided = asyncio.Event()  # set once it is known whether requests will be answered
        self._loop: asyncio.AbstractEventLoop | None = None
        self._picture = picture
        self._api: Api | None = None  # once it is imported
        self._opened: OpenedPool | None = None
        self._completed_models: set[str] = set()  # those whose first start has ended, in whatever way
        self._is_open = False  # whether a request may name a model
        self._refreshing: asyncio.Task[None] | None = None
        self._on_error: Callable[[], None] = lambda: None

    @property
    def api(self) -> ASGIApp | None:
        """The API, once it is imported."""
        return None if self._api is None else self._api.app

    @property
    def tracer(self) -> "Tracer | None":
        """What gets the spans of the API's requests; None for no traces."""
        return None if self._api is None else self._api.tracer

    @property
    def is_live(self) -> bool:
        """Whether this process should go on."""
        return self.error is None

    @property
    def is_ready(self) -> bool:
        """Whether the platform should send requests now."""
        progress = self.start_progress
        has_started = progress.is_complete if self.settings.ready_when == "complete" else progress.is_answering
        return has_started and self.error is None and not self.is_draining

    @property
    def status(self) -> str:
        """The state of the service in a word."""
        if self.error is not None:
            return "failed"
        if self.is_draining:
            return "draining"
        if self.start_progress.is_complete:
            return "complete"
        return "answering" if self.start_progress.is_answering else "starting"

    def progress(self) -> dict[str, Any]:
        """Return the start's progress as a JSON object."""
        return self.start_progress.progress()

    def summary(self) -> str:
        """Return the start's progress as one phrase."""
        return self.start_progress.summary()

    def stats(self) -> dict[str, Any]:
        """Return the start's timeline and results as a JSON object."""
        opened = self._opened
        models = [] if opened is None else opened.pool.reports(is_used=True)
        held = {}
        if opened is not None:
            held = {"host_cache_bytes": opened.loader.host_cache_bytes, "adapter_bytes": opened.pool.adapter_bytes}
        return {"is_ready": self.is_ready, **self.start_progress.report(), **held, "models": models}

    @property
    def first_model(self) -> "Served | None":
        """A loaded model; None if there is none."""
        return next((model.served for model in self._loaded), None)

    def check_open(self) -> None:
        """Check that requests may name a model.

        Raises:
            NotReady, Draining, EngineStopped: none can answer now.
        """
        if self.error is not None:
            raise EngineStopped("The engine has stopped; this instance is about to be replaced. Try again.")
        if self.is_draining:
            raise Draining
        if not self._is_open:
            raise NotReady(self.start_progress.summary())

    def lease(self, name: str | None) -> "Lease | None":
        """Return a loaded model; None if it has to be waited for. See `Backend.lease`."""
        return self.open_pool.lease(name)

    async def wait_for(self, name: str | None) -> "Lease":
        """Return a model once it is loaded. See `ModelPool.wait_for`."""
        return await self.open_pool.wait_for(name)

    def listed(self) -> "Sequence[ModelState]":
        """Return every model that requests may name."""
        return self.open_pool.listed()

    @property
    def open_pool(self) -> "ModelPool":
        """The models; raises as `check_open`."""
        self.check_open()
        assert self._opened is not None, "an open service has a pool"
        return self._opened.pool

    def start(self, on_error: Callable[[], None]) -> None:
        """Load the model on a thread; `on_error` is called from there, or later from the device thread."""
        self._on_error = on_error
        watch(self._step_wait_s, self.settings.watchdog_seconds, self._device_hangs)
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._load, args=(self._loop,), name="load", daemon=True).start()

    def begin_drain(self) -> None:
        """Refuse new requests, and those that wait for a model."""
        self.is_draining = True
        self.decided.set()
        if self._refreshing is not None:
            self._refreshing.cancel()
        if self._opened is not None:
            self._opened.pool.close()

    async def stop_batches(self) -> None:
        """End the runs of batches; a later process continues them."""
        if self._api is not None:
            await self._api.stop_batches()

    def cut(self, make_error: Callable[[], ServiceError]) -> None:
        """End every request that a model works on with an error; called on the event loop."""
        for model in self._loaded:
            model.running.thread.cut(make_error)

    def stop(self, timeout_s: float) -> None:
        """End the device threads, waiting up to `timeout_s` seconds for each; blocking."""
        for model in self._loaded:
            model.running.thread.stop(timeout_s)

    def _step_wait_s(self) -> float:
        return max((model.running.thread.step_wait_s for model in self._loaded), default=0.0)

    def _device_hangs(self) -> None:
        self.error = EngineStopped("a step of the device did not come back within WATCHDOG_SECONDS")
        self._on_loop(lambda: self.cut(lambda: EngineStopped("A step of the device does not come back.")))
        self._on_error()

    @property
    def _loaded(self) -> "Sequence[Loaded]":
        return [] if self._opened is None else self._opened.pool.loaded

    def _load(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            with self.start_progress.phase(Phase.IMPORT, "checkpoint"):
                from service.server.pool.opening import open_pool, start_without_model

            arguments = (self.settings, self.metrics, self.start_progress)
            self._opened = opened = open_pool(
                *arguments,
                import_api=self.import_api,
                num_early=lambda: self.num_early,
                on_engine_failure=self._engine_failed,
                on_complete=self._completed,
            )
            if not opened.preloaded:
                start_without_model(*arguments, opened.loader, self.import_api)
                self._on_loop(self._start_batches)
            for entry in opened.preloaded:
                asyncio.run_coroutine_threadsafe(opened.pool.preload(entry), loop).result()
            self._open()
        except CancelledError:  # the event loop has ended
            return
        except BaseException as error:  # of whatever kind: the process must end and log why
            self._fail(error)

    def _open(self) -> None:
        self._is_open = True
        self._on_loop(self._start_refreshing)
        self._decide()

    def _completed(self, entry: "ModelEntry", failure: BaseException | None) -> None:
        """Go on after a model's start; the process ends if one that belongs to its own start has failed.

        A later load of such a model, which an operator had unloaded, is no part of the start.
        """
        assert self._opened is not None, "a pool has loaded the model"
        is_first = entry.name not in self._completed_models
        self._completed_models.add(entry.name)
        if failure is not None:
            if entry.is_preloaded and is_first:
                self._fail(failure)
        elif (first := self._opened.loader.first) is not None:
            self._on_loop(self._start_batches)
            self._draw(first)
            self._opened.loader.adopt_devices(first.start.wait_for_devices())

    def _fail(self, error: BaseException) -> None:
        if self.is_draining and isinstance(error, EngineStopped | Draining):
            return  # the drain has stopped the engine, which is not a failure
        self.error = error
        self._decide()
        self._on_error()

    def _start_refreshing(self) -> None:
        if self._opened is not None and self._opened.catalogue.is_listed:
            refreshing = self._opened.refresh_forever(self.settings.catalogue_ttl)
            self._refreshing = asyncio.get_running_loop().create_task(refreshing)

    def import_api(self, _: "StartContext") -> None:
        """Import FastAPI and assemble the API; its imports hold the GIL."""
        with self.start_progress.phase(Phase.IMPORT, "api"):
            with quick_fastapi_import():
                from service.server.assembly import Api

            self._api = Api(self, self.settings, self.metrics, self.keys)

    def _decide(self) -> None:
        self._on_loop(self.decided.set)

    def _on_loop(self, call: Callable[[], None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the server has ended
                self._loop.call_soon_threadsafe(call)

    def _draw(self, first: "StartLoading") -> None:
        if self._picture is not None:
            from service.start.timeline import draw_or_warn

            title = f"levserve serve {self.settings.checkpoint_uri or '(demo model)'}"
            draw_or_warn(self.start_progress, first.start.tasks.done, self._picture, title)

    def _start_batches(self) -> None:
        if self._api is not None and not self.is_draining:
            self._api.start_batches()

    def _engine_failed(self) -> None:
        self.error = EngineStopped("the device thread failed; see the log above")
        self._on_error()
