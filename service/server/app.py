"""Open the port, load the model behind it, serve, drain.

The port is open before jax and FastAPI are imported, so a platform sees a live process within a second.
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

from service.errors import PortInUse
from service.server.early import EarlyAnswers
from service.server.service import Service
from service.settings import Settings

logger = logging.getLogger(__name__)

# Largest request head; h11 refuses more at once. Proxies allow about as much.
MAX_HEADER_BYTES = 64 * 1024
# Time for the last bytes of the streams after the drain.
CLOSE_CONNECTIONS_S = 1


class Server(uvicorn.Server):
    """Uvicorn whose first SIGTERM or SIGINT drains and whose second ends at once; the exit code is ours."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._draining: asyncio.Task[None] | None = None

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # After the port answers: the imports would delay the event loop.
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
    """Serve until a signal or an error stops the process.

    Args:
        settings: what to serve and how.
        picture: the file to draw the start's timeline into, if any.

    Raises:
        StartError: the service cannot start.
        EngineStopped: the engine died, so the platform must start another process.
    """
    service = Service(settings, picture)
    listener = bind(settings.host, settings.port)
    early = EarlyAnswers(
        service,
        service.metrics,
        admin_keys=settings.admin_api_keys,
        has_pages=settings.page,
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
    if _is_read_on_a_terminal(settings):
        from service.server.story import begin_story  # other starts save its import

        begin_story(service, host, port)
    else:
        logger.info("listening", extra={"host": host, "port": port})

    with contextlib.closing(listener):
        asyncio.run(server.serve(sockets=[listener]))
    if service.error is not None:
        raise service.error


def _is_read_on_a_terminal(settings: Settings) -> bool:
    """Return whether a person reads the log, in its usual format and at its usual level."""
    return sys.stdout.isatty() and settings.log_format != "json" and settings.log_level == "INFO"


def bind(host: str, port: int) -> socket.socket:
    """Open the port.

    Raises:
        PortInUse: another process holds it, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()  # connections from here on wait for the event loop instead of being refused
    except OSError as error:
        listener.close()
        raise PortInUse(host, port, error.strerror or str(error)) from error
    return listener
