"""The resources of a load."""

import threading
from dataclasses import dataclass

from service.observability.progress import Progress
from service.storage.cache.cache import CheckpointCache


@dataclass(frozen=True)
class LoadLimits:
    """The resources of a load."""

    cache: CheckpointCache | None  # keeps the files for the next start; None: nothing is kept (MODEL_STREAM)
    progress: Progress  # counts the bytes
    max_staging_bytes: int | None  # of host memory, besides the weights that stay there; None for a default
    cancelled: threading.Event | None = None  # set by the caller to end the load
