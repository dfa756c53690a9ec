"""`levserve serve` that logs its asyncio tasks on SIGUSR1; settings as ever."""

import asyncio
import logging
import signal
from collections.abc import Callable

from service.cli import main
from service.server.service import Service

start = Service.start
logger = logging.getLogger(__name__)


def start_counted(service: Service, on_error: Callable[[], None]) -> None:
    """Start a service and count its tasks when asked to."""
    start(service, on_error)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, lambda: logger.info("tasks", extra={"num_tasks": len(asyncio.all_tasks())}))


if __name__ == "__main__":
    Service.start = start_counted
    main()
