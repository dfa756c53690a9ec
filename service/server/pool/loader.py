"""Loading of a catalogue's model: its settings, its start, and the objects that later starts reuse."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from service.catalogue.entry import ModelEntry
from service.device.memory import Device, usable_memory_bytes
from service.observability.metrics import Metrics
from service.server.pool.pooled_model import Loading, MakeRoom
from service.settings import Settings
from service.start.context import CommonParts, StartContext
from service.start.devices import Devices
from service.start.load import ModelStart
from service.start.progress import StartProgress
from service.start.tasks import StartedModel
from service.weights.host_cache import HostCache


class StartLoading(Loading):
    """A running start."""

    def __init__(self, start: ModelStart, context: StartContext) -> None:
        self.start = start
        self._context = context

    def wait(self) -> StartedModel:
        return self.start.wait_for_model()

    def wait_until_complete(self) -> None:
        """Wait until the executables and the bundle are complete."""
        self.start.wait_until_ready()

    def cancel(self) -> None:
        """Stop the transfers."""
        self._context.failed.set()

    def progress(self) -> dict[str, Any]:
        return self._context.progress.progress()

    def summary(self) -> str:
        return self._context.progress.summary()


class Loader:
    """Starts the loads of a process; the `Load` of its pool."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        progress: StartProgress,
        *,
        import_api: Callable[[StartContext], None],
        num_early: Callable[[], int],
        on_engine_failure: Callable[[], None],
    ) -> None:
        """Prepare the first load, which is part of the start of the process.

        Args:
            settings: the settings of the process.
            metrics: the metrics of the process.
            progress: the progress of the process's start, used for its first model.
            import_api: a task that the first answer waits for.
            num_early: returns how many requests that came before the first model are not answered yet.
            on_engine_failure: called from the device thread of any model if it dies.
        """
        self._settings, self._metrics, self._progress = settings, metrics, progress
        self._import_api, self._num_early = import_api, num_early
        self._on_engine_failure = on_engine_failure
        self.first: StartLoading | None = None
        self._common = CommonParts(host_cache=HostCache(settings.host_cache_bytes))
        self._devices: Devices | None = None

    def __call__(self, entry: ModelEntry, make_room: MakeRoom) -> StartLoading:
        """Start to load a model."""
        is_first = self.first is None and self._devices is None
        settings = entry.settings(self._settings) if self._settings.has_catalogue else self._settings
        context = StartContext(
            settings,
            self._metrics,
            self._progress if is_first else StartProgress(self._metrics, time.monotonic()),
            self._on_engine_failure,
            self._metrics.of_model(entry.name),
            defaults=entry.defaults,
            generations=entry.generations,
            common=self._common,
            devices=self._known_devices(),
            memory_share=entry.share(self._settings) if self._settings.has_catalogue else 1.0,
            num_early=self._num_early,
            make_room=lambda num_bytes, devices: make_room(num_bytes, self._capacity_bytes(devices)),
        )
        loading = StartLoading(ModelStart(context, self._import_api if is_first else None), context)
        if is_first:
            self.first = loading
        return loading

    @property
    def host_cache_bytes(self) -> int:
        """The host memory used by weights of unloaded models."""
        return self._common.host_cache.num_bytes

    def adopt_devices(self, devices: Devices) -> None:
        """Reuse the devices found by the start of the process, and drop the reference to that start and its weights."""
        self._devices, self.first = devices, None

    def _known_devices(self) -> "Devices | None":
        if self._devices is None and self.first is not None:
            return self.first.start.wait_for_devices()
        return self._devices

    def _capacity_bytes(self, devices: Sequence[Device]) -> int:
        return usable_memory_bytes(devices, self._settings.device_memory_fraction)
