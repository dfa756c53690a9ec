"""A second port for the series alone, without a key: for scrapers that cannot send one. It is not to be published.

It has threads of its own, so a scrape is answered even while the event loop or the device is stuck.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import start_http_server

from service.errors import PortInUse
from service.observability.metrics import Metrics

logger = logging.getLogger(__name__)


@contextmanager
def metrics_port(metrics: Metrics, host: str, port: int | None) -> Iterator[None]:
    """Answer scrapes while the body runs; with no port, do nothing.

    Args:
        metrics: the series.
        host: the address to listen on.
        port: METRICS_PORT; 0 picks a free one.

    Raises:
        PortInUse: another process holds it.
    """
    if port is None:
        yield
        return
    try:
        server, thread = start_http_server(port, host, metrics.shown)  # pyright: ignore[reportArgumentType]
    except OSError as error:
        raise PortInUse(host, port, error.strerror or str(error)) from error
    logger.info("metrics listening", extra={"host": host, "port": server.server_port})
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
