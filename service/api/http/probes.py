"""Answers to health checks as plain data, so that they can be given before FastAPI is imported."""

from typing import Any, Protocol, runtime_checkable

from service.api.http.answer import Answer
from service.observability.metrics import LOAD_PATH

LIVE_PATH = "/health/live"
# `/health` and `/healthz` are aliases for older clients; Google's front end swallows `/healthz` on some platforms.
# SageMaker asks `/ping`.
READY_PATHS = ("/health/ready", "/health", "/healthz", "/ping")
# Platforms probe these without credentials, and the answers contain no secrets.
PROBE_PATHS = frozenset({LIVE_PATH, *READY_PATHS})
METRICS_PATH = "/metrics"
METRICS_PATHS = frozenset({METRICS_PATH, LOAD_PATH})
RETRY_AFTER_S = 2


@runtime_checkable
class Readiness(Protocol):
    """The state of the service: starting, answering, complete, draining or failed."""

    @property
    def is_live(self) -> bool:
        """False once the device thread has ended: the platform should restart the process."""
        ...

    @property
    def is_ready(self) -> bool:
        """True from the moment that READY_WHEN names until the drain."""
        ...

    @property
    def status(self) -> str:
        """`starting`, then `answering` from the first real token on, `complete` once nothing is left to compile."""
        ...

    def progress(self) -> dict[str, Any]:
        """Return the phases of the start as a JSON object."""
        ...


def live_answer(readiness: Readiness) -> Answer:
    """Return 200 while the process should go on, 503 to ask for a restart."""
    is_live = readiness.is_live
    return Answer(200 if is_live else 503, {"status": "live" if is_live else "dead"}, {})


def ready_answer(readiness: Readiness) -> Answer:
    """Return 200 if the service is ready, 503 if not, with its status and the progress of the start."""
    answer = {"status": readiness.status, **readiness.progress()}
    if readiness.is_ready:
        return Answer(200, answer, {})
    return Answer(503, answer, {"retry-after": str(RETRY_AFTER_S)})
