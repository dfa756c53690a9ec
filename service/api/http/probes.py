"""Answers to health checks as plain data, so that they can be given before FastAPI is imported."""

from typing import TYPE_CHECKING

from service.api.http.errors import Answer
from service.observability.metrics import LOAD_PATH

if TYPE_CHECKING:
    from service.api.backend import Backend

LIVE_PATH = "/health/live"
# `/health` and `/healthz` are aliases for older clients; Google's front end swallows `/healthz` on some platforms.
# SageMaker asks `/ping`.
READY_PATHS = ("/health/ready", "/health", "/healthz", "/ping")
# Platforms probe these without credentials, and the answers contain no secrets.
PROBE_PATHS = frozenset({LIVE_PATH, *READY_PATHS})
METRICS_PATH = "/metrics"
METRICS_PATHS = frozenset({METRICS_PATH, LOAD_PATH})
RETRY_AFTER_S = 2


def live_answer(backend: "Backend") -> Answer:
    """Return 200 while the process should go on, 503 to ask for a restart."""
    is_live = backend.is_live
    return Answer(200 if is_live else 503, {"status": "live" if is_live else "dead"}, {})


def ready_answer(backend: "Backend") -> Answer:
    """Return 200 if the service is ready, 503 if not, with its status and the progress of the start."""
    answer = {"status": backend.status, **backend.progress()}
    if backend.is_ready:
        return Answer(200, answer, {})
    return Answer(503, answer, {"retry-after": str(RETRY_AFTER_S)})
