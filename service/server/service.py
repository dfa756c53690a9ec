"""One process as a whole: a start under way, then a model that answers, then a drain."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp

from service.errors import Draining, EngineStopped, NotReady, ServiceError
from service.observability.metrics import Metrics
from service.server.watchdog import watch
from service.settings import Settings
from service.start.imports import quick_fastapi_import
from service.start.progress import Phase, StartProgress

if TYPE_CHECKING:
    from service.api.batch.batches import Batches
    from service.api.batch.worker import BatchWorker
    from service.api.served import Served
    from service.observability.tracing import Tracer
    from service.start.context import StartContext
    from service.start.graph import Task
    from service.start.load import ModelStart
    from service.start.tasks import LoadedModel

logger = logging.getLogger(__name__)


class Service:
    """The state behind the port; the API's `ModelReadiness`. The start's threads write it, the event loop reads it."""

    def __init__(self, settings: Settings, picture: Path | None = None) -> None:
        """Create a service that has not started.

        Args:
            settings: what to serve and how.
            picture: the file to draw the start's timeline into, if any.
        """
        self.settings = settings
        self.metrics = Metrics(has_vllm_names=settings.metrics_compat == "vllm")
        self.start_progress = StartProgress(self.metrics)
        self.loaded: LoadedModel | None = None
        self.api: ASGIApp | None = None
        self.error: BaseException | None = None  # why the process must end
        self.is_draining = False
        self.decided = asyncio.Event()  # set once it is known whether requests will be answered
        self._loop: asyncio.AbstractEventLoop | None = None
        self._picture = picture
        self._batches: Batches | None = None
        self._worker: BatchWorker | None = None
        self._on_error: Callable[[], None] = lambda: None
        self._loading = threading.Thread(target=self._load, name="load", daemon=True)

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
        return {"is_ready": self.is_ready, **self.start_progress.report()}

    def served_model(self) -> "Served":
        """Return the model that answers.

        Raises:
            NotReady, Draining, EngineStopped: no model answers now.
        """
        if self.error is not None:
            raise EngineStopped("The engine has stopped; this instance is about to be replaced. Try again.")
        if self.is_draining:
            raise Draining
        if self.loaded is None:
            raise NotReady(self.start_progress.summary())
        return self.loaded.served

    def start(self, on_error: Callable[[], None]) -> None:
        """Load the model on a thread; `on_error` is called from there, or later from the device thread."""
        self._on_error = on_error
        watch(self._step_wait_s, self.settings.watchdog_seconds, self._device_hangs)
        self._loop = asyncio.get_running_loop()
        self._loading.start()

    def begin_drain(self) -> None:
        """Refuse new requests."""
        self.is_draining = True
        self.decided.set()

    async def stop_batches(self) -> None:
        """End the runs of batches; a later process continues them."""
        if self._worker is not None:
            await self._worker.stop()

    def cut(self, make_error: Callable[[], ServiceError]) -> None:
        """End every request that the model works on with an error; called on the event loop."""
        if self.loaded is not None:
            self.loaded.running.cut(make_error)

    def stop(self, timeout_s: float) -> None:
        """End the device thread, if it ends within so many seconds; not on the event loop."""
        if self.loaded is not None:
            self.loaded.running.stop(timeout_s)

    def _step_wait_s(self) -> float:
        return 0.0 if self.loaded is None else self.loaded.running.step_wait_s

    def _device_hangs(self) -> None:
        self.error = EngineStopped("a step of the device did not come back within WATCHDOG_SECONDS")
        self._on_loop(lambda: self.cut(lambda: EngineStopped("A step of the device does not come back.")))
        self._on_error()

    def _load(self) -> None:
        try:
            start = self._begin()
            self.loaded = start.wait_for_model()
            self._decide()
            start.wait_until_ready()
            self._on_loop(self._start_batches)
            self._draw(start)
        except BaseException as error:  # of whatever kind: the process must end and log why
            if self.is_draining and isinstance(error, EngineStopped):
                return  # the drain has stopped the engine, which is not a failure
            self.error = error
            self._decide()
            self._on_error()

    def _begin(self) -> "ModelStart":
        with self.start_progress.phase(Phase.IMPORT, "checkpoint"):
            from service.start.context import StartContext
            from service.start.load import ModelStart

        context = StartContext(self.settings, self.metrics, self.start_progress, self._engine_failed)
        return ModelStart(context, before_answering=[self.api_task])

    @property
    def api_task(self) -> "Task":
        """The task that imports the API. The import holds the GIL, so it begins after the loading of executables."""
        from service.start.graph import Task

        return Task("api", self._import_api, after=("bundle",))

    def _decide(self) -> None:
        self._on_loop(self.decided.set)

    def _on_loop(self, call: Callable[[], None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the server has ended
                self._loop.call_soon_threadsafe(call)

    def _draw(self, start: "ModelStart") -> None:
        if self._picture is not None:
            from service.start.timeline import draw

            title = f"levserve serve {self.settings.checkpoint_uri or '(demo model)'}"
            try:
                draw(self.start_progress, start.run.times, self._picture, title)
            except OSError as error:  # the service answers all the same
                logger.warning("the picture was not written", extra={"reason": str(error)})
            else:
                logger.info("drew the start", extra={"file": str(self._picture)})

    def _import_api(self, _: "StartContext") -> None:
        """Import FastAPI and assemble the API."""
        with self.start_progress.phase(Phase.IMPORT, "api"):
            with quick_fastapi_import():
                import fastapi  # noqa: F401
            from service.api.application import create_api
            from service.server.batches import open_batches

            self._batches = open_batches(self.settings)
            self.api = create_api(
                self,
                self.metrics,
                api_keys=self.settings.api_keys,
                max_requests=self.settings.max_concurrent_requests,
                request_timeout_s=self.settings.request_timeout,
                default_max_tokens=self.settings.default_max_tokens,
                default_temperature=self.settings.default_temperature,
                max_body_bytes=self.settings.max_body_bytes,
                tracer=self._tracer(),
                batches=self._batches,
                max_file_bytes=self.settings.batch_file_bytes,
            )

    def _tracer(self) -> "Tracer | None":
        if self.settings.otel_exporter_otlp_endpoint is None:
            return None
        from service.observability.tracing import Tracer

        return Tracer(self.settings.otel_exporter_otlp_endpoint, self.settings.k_service)

    def _start_batches(self) -> None:
        """Begin with the batches that wait; called on the event loop."""
        if self.is_draining or self.api is None or self._batches is None:
            return
        from service.api.batch.worker import BatchWorker

        self._worker = BatchWorker(
            self.api,
            self._batches,
            self,
            self.metrics,
            max_in_flight=min(self.settings.max_num_seqs, max(1, self.settings.max_concurrent_requests // 2)),
            max_line_bytes=self.settings.max_body_bytes,
        )
        self._worker.start()

    def _engine_failed(self) -> None:
        self.error = EngineStopped("the device thread failed; see the log above")
        self._on_error()
