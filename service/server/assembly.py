"""The API of a process, assembled from its settings; importing this file imports FastAPI."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from service.api.application import create_api
from service.api.backend import Backend
from service.api.batch.batches import Batches
from service.api.batch.files import Files
from service.api.http.access_log import AccessLog
from service.api.http.keys import ApiKeys
from service.api.http.request_queue import Caps
from service.api.memory.store import ResponseStore
from service.observability.metrics import Metrics
from service.observability.tracing import Tracer
from service.settings import Settings
from service.start.niceness import LONG_TEXT_NICENESS, yield_to_steps
from service.storage.store import ObjectStore, open_store

if TYPE_CHECKING:
    from service.api.batch.worker import BatchWorker
    from service.api.work.remote_images import RemoteImages

OFF = "off"


class Api:
    """The API, and the batches that run through it."""

    def __init__(self, backend: Backend, settings: Settings, metrics: Metrics, keys: ApiKeys) -> None:
        """Assemble the API.

        Args:
            backend: the models that answer.
            settings: limits and defaults, and where batches and responses lie.
            metrics: the series that answers are counted in.
            keys: each of these opens every route; if empty, no key is needed.

        Raises:
            SettingsError: an address of batches, responses or traces cannot be used.
        """
        self.tracer = make_tracer(settings)
        self._backend, self._settings, self._metrics = backend, settings, metrics
        self._batches = open_batches(settings)
        self._worker: BatchWorker | None = None
        self.app = create_api(
            backend,
            metrics,
            keys=keys,
            caps=caps_of(settings, self._num_slots),
            request_timeout_s=settings.request_timeout,
            default_max_tokens=settings.default_max_tokens,
            default_temperature=settings.default_temperature,
            max_body_bytes=settings.max_body_bytes,
            batches=self._batches,
            responses=open_responses(settings),
            max_file_bytes=settings.batch_file_bytes,
            max_audio_bytes=settings.max_audio_bytes,
            max_image_body_bytes=settings.image_body_bytes,
            remote_images=_remote_images(settings),
            yield_to_steps=partial(yield_to_steps, LONG_TEXT_NICENESS),
        )

    def start_batches(self) -> None:
        """Begin with the batches that wait; called on the event loop."""
        if self._batches is None:
            return
        from service.api.batch.worker import BatchWorker  # a start has no time for it

        settings = self._settings
        self._worker = BatchWorker(
            AccessLog(self.app, metrics=self._metrics, strict_fields=settings.strict_fields),
            self._batches,
            self._backend,
            self._metrics,
            max_in_flight=min(self._num_slots(), max(1, settings.max_concurrent_requests // 2)),
            max_line_bytes=settings.image_body_bytes,
        )
        self._worker.start()

    def _num_slots(self) -> int:
        """Return how many sequences of a model run at the same time: with DATA_PARALLEL=auto, its start decides."""
        of_loaded = (load.num_slots for load in self._metrics.loads().values())
        return max((self._settings.num_slots, *of_loaded))

    async def stop_batches(self) -> None:
        """End the runs of batches; a later process continues them."""
        if self._worker is not None:
            await self._worker.stop()


def caps_of(settings: Settings, num_slots: Callable[[], int]) -> Caps:
    """Return the most that the requests of one process may take together."""
    return Caps(
        max_requests=settings.max_concurrent_requests,
        max_queue_size=settings.max_queue_size,
        max_queued_tokens=settings.max_queued_tokens,
        max_open_body_bytes=settings.max_open_body_bytes,
        queue_timeout_s=settings.queue_timeout,
        num_slots=num_slots,
    )


def make_tracer(settings: Settings) -> Tracer | None:
    """Return what sends the spans of requests to the collector; None if there is none."""
    if settings.otel_exporter_otlp_endpoint is None:
        return None
    return Tracer(settings.otel_exporter_otlp_endpoint, settings.k_service)


def state_store(settings: Settings, uri: str | None, variable: str, folder: str) -> ObjectStore | None:
    """Return the store at an address; None if there is to be none. Nothing is read yet.

    Args:
        settings: the cache, and the emulator of a bucket.
        uri: the address; None for a folder in LOCAL_MODEL_CACHE, and with MODEL_STREAM for none.
        variable: the setting that states the address, for the message.
        folder: the name of that folder.

    Raises:
        SettingsError: the address is malformed, or of a kind that cannot be written.
    """
    if uri is None:  # MODEL_STREAM says that files are memory here
        uri = OFF if settings.model_stream else str(settings.local_model_cache / folder)
    return None if uri == OFF else open_store(uri, variable, emulator_host=settings.storage_emulator_host)


def open_responses(settings: Settings) -> ResponseStore | None:
    """Return the responses at STATE_URI; None if none are to be kept. Raises SettingsError."""
    store = state_store(settings, settings.state_uri, "STATE_URI", "responses")
    if store is None:
        return None
    return ResponseStore(
        store,
        lifetime_s=settings.state_ttl,
        max_bytes=settings.state_total_bytes,
        max_conversation_bytes=settings.max_body_bytes,
    )


def open_batches(settings: Settings) -> Batches | None:
    """Return the files and batches at BATCH_URI; None if there are to be none. Raises SettingsError."""
    store = state_store(settings, settings.batch_uri, "BATCH_URI", "batches")
    if store is None:
        return None
    return Batches(store, Files(store, max_bytes=settings.batch_total_bytes))


def _remote_images(settings: Settings) -> "RemoteImages | None":
    """Return what fetches images; None unless the operator allows it."""
    if not settings.allow_remote_images:
        return None
    from service.api.work.remote_images import RemoteImages  # a start has no time for it

    return RemoteImages(timeout_s=settings.remote_image_timeout, max_bytes=settings.max_remote_image_bytes)
