"""The place of files and batches that the settings name, and the worker that answers them."""

from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from service.api.batch.batches import Batches
from service.api.batch.files import Files
from service.observability.metrics import Metrics
from service.server.state import state_store
from service.settings import Settings

if TYPE_CHECKING:
    from service.api.backend import Backend
    from service.api.batch.worker import BatchWorker


def open_batches(settings: Settings) -> Batches | None:
    """Return the files and batches at BATCH_URI; None if there are to be none. Raises SettingsError."""
    store = state_store(settings, settings.batch_uri, "BATCH_URI", "batches")
    if store is None:
        return None
    return Batches(store, Files(store, max_bytes=settings.batch_total_bytes))


def start_worker(
    api: ASGIApp, batches: Batches, readiness: "Backend", metrics: Metrics, settings: Settings
) -> "BatchWorker":
    """Begin with the batches that wait; called on the event loop."""
    from service.api.batch.worker import BatchWorker  # a start has no time for it

    worker = BatchWorker(
        api,
        batches,
        readiness,
        metrics,
        max_in_flight=min(settings.max_num_seqs, max(1, settings.max_concurrent_requests // 2)),
        max_line_bytes=settings.max_body_bytes,
    )
    worker.start()
    return worker
