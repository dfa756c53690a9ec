"""The server process: open the port, load the model in the background, serve, drain.

The port is open before jax and FastAPI are imported, so that a platform sees a live process within a second.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import override

import uvicorn
from starlette.types import ASGIApp

from service.api.http.access_log import AccessLog
from service.errors import CannotListen
from service.observability.background import log_in_background
from service.observability.metrics_port import metrics_port
from service.server.connection import connection_class
from service.server.cors import with_cors
from service.server.drain import drain
from service.server.early import EarlyAnswers
from service.server.hosts import HostCheck, is_loopback
from service.server.service import Service
from service.server.watchdog import end_after
from service.settings import Settings

logger = logging.getLogger(__name__)

# Google's load balancers keep a connection for 600 s and must be the ones that close it.
# Source: https://cloud.google.com/load-balancing/docs/https#timeout-keepalive-backends
KEEP_ALIVE_S = 620

# How long the kernel waits for acknowledgements or keepalive responses before it drops a connection.
PEER_TIMEOUT_S = 30
# Time for connections opened after the drain closed the others, and for the device thread to stop.
CLOSE_CONNECTIONS_S = 1
STOP_DEVICE_S = 0.3
# Time from the end of the drain until the process is terminated, whatever blocks it.
EXIT_S = 1.4


class Server(uvicorn.Server):
    """A uvicorn server that drains on the first SIGTERM or SIGINT and exits immediately on a second SIGINT."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._draining: asyncio.Task[None] | None = None

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # After the port is open: the imports would delay the event loop.
        self._service.start(on_error=self._stop)

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._draining is not None:
            if sig == signal.SIGINT:
                asyncio.get_running_loop().call_soon_threadsafe(self._abort)
                self.should_exit = self.force_exit = True
            return
        logger.info("stopping", extra={"signal": signal.Signals(sig).name})
        end_after(self._service.settings.drain_seconds + EXIT_S, 0)
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    def _stop(self) -> None:
        self.should_exit = True

    def _abort(self) -> None:
        """End every response as if its client had disconnected; cancelling the tasks would look like a fault."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def _drain(self) -> None:
        await drain(self.server_state, self._service, self._service.settings.drain_seconds)
        self.should_exit = True


def serve(settings: Settings, picture: Path | None = None) -> None:
    """Serve until a signal or an error stops the process.

    Args:
        settings: the settings of the service.
        picture: the file for a plot of the start, if any.

    Raises:
        StartError: the service cannot start.
        EngineStopped: the engine died, so the platform must restart the process.
    """
    service = Service(settings, picture)
    listener = bind(settings.host, settings.port, settings.source_of("host"))
    is_on_loopback = is_loopback(listener.getsockname()[0])
    config = uvicorn.Config(
        asgi_app(service, is_on_loopback=is_on_loopback),
        http=connection_class(),
        timeout_keep_alive=KEEP_ALIVE_S,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=CLOSE_CONNECTIONS_S,
    )
    server = Server(config, service)
    host, port = listener.getsockname()[:2]
    if _is_interactive(settings):
        from service.server.terminal import show_start  # not needed otherwise

        show_start(service, host, port)
    else:
        logger.info("listening", extra={"host": host, "port": port})

    log_in_background()
    with contextlib.closing(listener), metrics_port(service.metrics, settings.host, settings.metrics_port):
        asyncio.run(server.serve(sockets=[listener]))
    service.stop(STOP_DEVICE_S)
    if service.error is not None:
        raise service.error


def asgi_app(service: Service, *, is_on_loopback: bool = False) -> ASGIApp:
    """Return the app of a service that starts: what its port answers from the first moment on.

    Args:
        service: answers, or says why not.
        is_on_loopback: whether the port is for this machine only.
    """
    settings = service.settings
    answers: ASGIApp = EarlyAnswers(
        service,
        keys=service.keys,
        admin_keys=settings.admin_api_keys,
        has_metrics=settings.enable_metrics,
        has_pages=settings.page,
        max_waiting=settings.max_concurrent_requests if settings.early_requests == "wait" else 0,
        wait_s=settings.request_timeout,
        queue_timeout_s=settings.queue_timeout,
    )
    if is_on_loopback and not (settings.api_keys or settings.api_key_file):
        answers = HostCheck(answers, hosts=settings.host_names, origins=settings.allowed_origins)
    app = AccessLog(
        answers,
        metrics=service.metrics,
        strict_fields=settings.strict_fields,
        aliases=settings.path_aliases,
        tracer=lambda: service.tracer,
    )
    return with_cors(app, settings.allowed_origins)


def _is_interactive(settings: Settings) -> bool:
    """Return whether stdout is a terminal, with the default log format and level."""
    return sys.stdout.isatty() and settings.log_format != "json" and settings.log_level == "INFO"


def bind(host: str, port: int, host_source: str = "") -> socket.socket:
    """Open the port.

    Raises:
        CannotListen: another process uses the port, or the address does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if `proto` is IPPROTO_TCP; otherwise Nagle plus delayed ACKs can add 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        _detect_lost_peers(listener)
        listener.bind((host, port))
        listener.listen()  # from here on, connections wait for the event loop instead of being refused
    except OSError as error:
        listener.close()
        raise CannotListen.because(error, host, port, host_source=host_source) from error
    return listener


def _detect_lost_peers(listener: socket.socket) -> None:
    """Make the kernel drop connections whose peers are gone; accepted sockets inherit the options.

    Source: https://man7.org/linux/man-pages/man7/tcp.7.html
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PEER_TIMEOUT_S)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, PEER_TIMEOUT_S * 1000)
