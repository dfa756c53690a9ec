"""The composition root: opens the port, loads the model behind it, serves, drains.

The port is open before jax and FastAPI are imported, so a platform sees a live process within a second; what takes time
happens on threads of its own, and `/health/ready` tells how far it is.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, override

import uvicorn
from starlette.types import ASGIApp

from service.errors import Draining, EngineStopped, NotReady, PortInUse
from service.observability.metrics import Metrics
from service.server.early import EarlyAnswers
from service.settings import Settings
from service.start.imports import without_documents
from service.start.progress import Phase, Startup

if TYPE_CHECKING:
    from service.api.dependencies import ServedModel
    from service.start.load import LoadedModel

logger = logging.getLogger(__name__)

# What a client may send ahead of a body; h11 refuses more at once. Proxies allow about as much.
MAX_HEADER_BYTES = 64 * 1024
# After the drain the last bytes of the streams still have to leave.
CLOSE_CONNECTIONS_S = 1


class Service:
    """One process: a start under way, then a model, then a drain. The API's `Readiness`."""

    def __init__(self, settings: Settings, picture: Path | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.startup = Startup(self.metrics)
        self.loaded: LoadedModel | None = None
        self.api: ASGIApp | None = None
        self.error: BaseException | None = None  # why the process must end
        self.is_draining = False
        self.decided = asyncio.Event()  # whether requests will be answered
        self._loop: asyncio.AbstractEventLoop | None = None
        self._picture = picture
        self._on_error = lambda: None
        self._loading = threading.Thread(target=self._load, name="load", daemon=True)

    @property
    def is_live(self) -> bool:
        """Whether this process should go on."""
        return self.error is None

    @property
    def is_ready(self) -> bool:
        """Whether a request would be taken now."""
        return self.startup.is_ready and self.error is None and not self.is_draining

    @property
    def is_loading(self) -> bool:
        """Whether the start is still under way."""
        return self._loading.is_alive()

    def progress(self) -> dict[str, Any]:
        """Return how far the start is, as JSON."""
        return self.startup.progress()

    def summary(self) -> str:
        """Return how far the start is, in one phrase."""
        return self.startup.summary()

    def stats(self) -> dict[str, Any]:
        """Return the start's timeline and what came of it, as JSON."""
        return {"is_ready": self.is_ready, **self.startup.report()}

    def served_model(self) -> "ServedModel":
        """Return the model that answers.

        Raises:
            NotReady, Draining, EngineStopped: none does.
        """
        if self.error is not None:
            raise EngineStopped("The engine has stopped; this instance is about to be replaced. Try again.")
        if self.is_draining:
            raise Draining
        if self.loaded is None:
            raise NotReady(self.startup.summary())
        return self.loaded.served

    def start(self, on_error: Callable[[], None]) -> None:
        """Load the model on a thread; `on_error` is called from there, or later from the device thread."""
        self._on_error = on_error
        self._loop = asyncio.get_running_loop()
        self._loading.start()

    async def drain(self) -> None:
        """Take no more requests and let the running ones finish, up to DRAIN_SECONDS."""
        self.is_draining = True
        self.decided.set()
        if self.loaded is not None:
            engine = self.loaded.engine
            is_done = await engine.drain(self.settings.drain_seconds)
            logger.info("drained", extra={"is_complete": is_done, "cut_off": engine.num_open})
            engine.stop()

    def _load(self) -> None:
        try:
            with self.startup.phase(Phase.IMPORT, "checkpoint"):
                from service.start.load import ModelLoad

            load = ModelLoad(self.settings, self.startup, self.metrics, self._engine_failed)
            loaded = load.run(beside=self._import_api)
            self.loaded = loaded
            self._decide()
            loaded.complete()
            self._draw()
        except BaseException as error:  # whatever it is, the process must end and say so
            if self.is_draining and isinstance(error, EngineStopped):
                return  # it ends already, and what it ended is not told as a failure
            self.error = error
            self._decide()
            self._on_error()

    def _decide(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the server has ended meanwhile
                self._loop.call_soon_threadsafe(self.decided.set)

    def _draw(self) -> None:
        if self._picture is not None:
            from service.start.timeline import draw

            try:
                draw(self.startup, self._picture, f"levserve serve {self.settings.checkpoint_uri or '(demo model)'}")
            except OSError as error:  # the service answers all the same
                logger.warning("the picture was not written", extra={"reason": str(error)})
            else:
                logger.info("drew the start", extra={"file": str(self._picture)})

    def _import_api(self) -> None:
        with self.startup.phase(Phase.IMPORT, "api"):
            with without_documents():
                import fastapi  # noqa: F401
            from service.api.application import create_api

            self.api = create_api(
                self,
                self.metrics,
                api_keys=self.settings.api_keys,
                request_timeout_s=self.settings.request_timeout,
                default_max_tokens=self.settings.default_max_tokens,
                default_temperature=self.settings.default_temperature,
                max_body_bytes=self.settings.max_body_bytes,
                project_id=self.settings.google_cloud_project,
            )

    def _engine_failed(self) -> None:
        self.error = EngineStopped("the device thread failed; see the log above")
        self._on_error()


class Server(uvicorn.Server):
    """Uvicorn, but a first SIGTERM or SIGINT drains and a second one ends at once; either way the exit code is ours."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._draining: asyncio.Task[None] | None = None

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # Not before the port answers: the imports would keep the event loop from starting.
        self._service.start(on_error=self._stop)

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._draining is not None:
            self.should_exit = self.force_exit = True
            return
        logger.info("stopping", extra={"signal": signal.Signals(sig).name})
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    def _stop(self) -> None:
        self.should_exit = True

    async def _drain(self) -> None:
        await self._service.drain()
        self.should_exit = True


def serve(settings: Settings, picture: Path | None = None) -> None:
    """Serve until told to stop.

    Args:
        settings: what to serve and how.
        picture: where to draw the start's timeline, if anywhere.

    Raises:
        StartError: the service cannot start.
        EngineStopped: the engine died, so that the platform must start another process.
    """
    service = Service(settings, picture)
    listener = bind(settings.host, settings.port)
    early = EarlyAnswers(
        service,
        service.metrics,
        admin_keys=settings.admin_api_keys,
        max_waiting=settings.max_concurrent_requests if settings.early_requests == "wait" else 0,
        wait_s=settings.request_timeout,
    )
    config = uvicorn.Config(
        early,
        http="h11",  # httptools has no limit on headers
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=CLOSE_CONNECTIONS_S,
    )
    server = Server(config, service)
    host, port = listener.getsockname()[:2]
    logger.info("listening", extra={"host": host, "port": port})

    with contextlib.closing(listener):
        asyncio.run(server.serve(sockets=[listener]))
    if service.error is not None:
        raise service.error


def bind(host: str, port: int) -> socket.socket:
    """Open the port.

    Raises:
        PortInUse: another process has it, or the address is not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()  # who connects from now on waits for the event loop and is not refused
    except OSError as error:
        listener.close()
        raise PortInUse(host, port, error.strerror or str(error)) from error
    return listener
