"""The place of files and batches that the settings name, and the worker that answers them."""

from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from service.api.batch.batches import Batches
from service.api.batch.files import Files
from service.observability.metrics import Metrics
from service.settings import Settings
from service.storage.store import open_store

if TYPE_CHECKING:
    from service.api.batch.worker import BatchWorker
    from service.api.dependencies import ModelReadiness

OFF = "off"
FOLDER = "batches"  # in LOCAL_MODEL_CACHE


def open_batches(settings: Settings) -> Batches | None:
    """Return the files and batches at BATCH_URI; None if there are to be none. Nothing is read yet.

    Raises:
        SettingsError: BATCH_URI is malformed, or of a kind that cannot be written.
    """
    uri = settings.batch_uri
    if uri is None:  # MODEL_STREAM says that files are memory here
        uri = OFF if settings.model_stream else str(settings.local_model_cache / FOLDER)
    if uri == OFF:
        return None
    store = open_store(uri, "BATCH_URI", emulator_host=settings.storage_emulator_host)
    return Batches(store, Files(store, max_bytes=settings.batch_total_bytes))


def start_worker(
    api: ASGIApp, batches: Batches, readiness: "ModelReadiness", metrics: Metrics, settings: Settings
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
