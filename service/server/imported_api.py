"""The API of a process, imported while its model loads, and the batches that run through it."""

from functools import partial
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from service.api.http.keys import ApiKeys
from service.observability.metrics import Metrics
from service.settings import Settings
from service.start.niceness import LONG_TEXT_NICENESS, yield_to_steps

if TYPE_CHECKING:
    from service.api.batch.batches import Batches
    from service.api.batch.worker import BatchWorker
    from service.api.dependencies import ModelReadiness


class ImportedApi:
    """The API and the worker of batches; neither is there before the import."""

    def __init__(self, models: "ModelReadiness", settings: Settings, metrics: Metrics, keys: ApiKeys) -> None:
        """Describe an API that is not imported yet.

        Args:
            models: which the API answers with.
            settings: its limits and defaults, and where batches and responses lie.
            metrics: the series that answers are counted in.
            keys: each of these opens every route; if empty, no key is needed.
        """
        self.app: ASGIApp | None = None  # once it is imported
        self._models, self._settings, self._metrics, self._keys = models, settings, metrics, keys
        self._batches: Batches | None = None
        self._worker: BatchWorker | None = None

    def load(self) -> None:
        """Assemble the API; its imports hold the GIL."""
        from service.api.application import create_api
        from service.server.batches import open_batches
        from service.server.caps import caps_of
        from service.server.state import open_responses
        from service.server.tracer import tracer_of

        settings = self._settings
        self._batches = open_batches(settings)
        self.app = create_api(
            self._models,
            self._metrics,
            keys=self._keys,
            caps=caps_of(settings),
            request_timeout_s=settings.request_timeout,
            default_max_tokens=settings.default_max_tokens,
            default_temperature=settings.default_temperature,
            max_body_bytes=settings.max_body_bytes,
            tracer=tracer_of(settings),
            batches=self._batches,
            responses=open_responses(settings),
            max_file_bytes=settings.batch_file_bytes,
            yield_to_steps=partial(yield_to_steps, LONG_TEXT_NICENESS),
            strict_fields=settings.strict_fields,
        )

    def start_batches(self) -> None:
        """Begin with the batches that wait; called on the event loop."""
        if self.app is None or self._batches is None:
            return
        from service.server.batches import start_worker

        self._worker = start_worker(self.app, self._batches, self._models, self._metrics, self._settings)

    async def stop_batches(self) -> None:
        """End the runs of batches; a later process continues them."""
        if self._worker is not None:
            await self._worker.stop()
