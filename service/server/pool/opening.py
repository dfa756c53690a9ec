"""Creation of the pool from the settings, and the refreshing of its catalogue."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from service.catalogue.catalogue import Catalogue
from service.catalogue.entry import ModelEntry
from service.catalogue.sources import catalogue_of_settings, one_model
from service.device.heap import return_freed_memory
from service.errors import CheckpointError
from service.observability.metrics import Metrics
from service.server.pool.load_queue import OnComplete
from service.server.pool.loader import Loader
from service.server.pool.policy import PoolLimits
from service.server.pool.pool import ModelPool
from service.settings import Settings
from service.start.context import StartContext
from service.start.discover import checkpoint_uri, find_devices
from service.start.graph import Tasks
from service.start.imports import collect_unloaded, end_quick_imports
from service.start.progress import Phase, StartProgress
from service.start.tasks import served_names

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenedPool:
    """A pool with its loader and catalogue, before anything is loaded."""

    pool: ModelPool
    loader: Loader
    catalogue: Catalogue

    @property
    def preloaded(self) -> list[ModelEntry]:
        """The models to load during the start."""
        return [entry for entry in self.catalogue.entries if entry.is_preloaded and not entry.has_slot]

    async def refresh_forever(self, interval_s: float) -> None:
        """List the catalogue periodically until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await asyncio.to_thread(self.catalogue.refresh)
            except (CheckpointError, OSError) as error:  # keep the previous models
                logger.warning("the catalogue cannot be listed", extra={"reason": str(error)})


def open_pool(
    settings: Settings,
    metrics: Metrics,
    progress: StartProgress,
    *,
    import_api: Callable[[StartContext], None],
    num_early: Callable[[], int],
    on_engine_failure: Callable[[], None],
    on_complete: OnComplete,
) -> OpenedPool:
    """Create the pool of a process and list its catalogue.

    Raises:
        SettingsError: the catalogue is invalid.
        CheckpointError: the catalogue cannot be listed.
    """
    loader = Loader(
        settings,
        metrics,
        progress,
        import_api=import_api,
        num_early=num_early,
        on_engine_failure=on_engine_failure,
    )
    if settings.has_catalogue:
        with progress.phase(Phase.LOCATE, "catalogue") as fields:
            catalogue = catalogue_of_settings(settings)
            catalogue.refresh()
            fields["models"] = len(catalogue.entries)
    else:
        catalogue = one_model(checkpoint_uri(settings), served_names(settings))
    limits = PoolLimits(
        max_models=settings.max_cached_models if settings.has_catalogue else 1,
        max_waiting=settings.max_concurrent_requests,
        load_wait_s=settings.model_load_wait_seconds,
    )
    pool = ModelPool(
        catalogue,
        loader,
        limits,
        metrics,
        on_complete=on_complete,
        on_unloaded=_free_unloaded,
        adapter_bytes=settings.lora_cache_bytes,
    )
    return OpenedPool(pool, loader, catalogue)


def _free_unloaded(begun_s: float) -> None:
    collect_unloaded(begun_s)
    return_freed_memory()


def start_without_model(
    settings: Settings,
    metrics: Metrics,
    progress: StartProgress,
    loader: Loader,
    import_api: Callable[[StartContext], None],
) -> None:
    """Run the parts of a start that are independent of models: import jax, find the devices, import the API.

    Raises:
        StartError: there are no devices.
    """
    context = StartContext(settings, metrics, progress)
    tasks = Tasks[StartContext]()
    devices = tasks.add("devices", find_devices)
    tasks.add("api", import_api)
    tasks.begin(context)
    tasks.wait()
    loader.adopt_devices(devices.wait())
    end_quick_imports()
    progress.mark_answering(None)
    progress.mark_ready()
