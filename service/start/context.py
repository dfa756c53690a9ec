"""The context that every task of a start receives: settings, clocks, counters, and the cache of checkpoints."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from service.checkpoint.load import LoadLimits
from service.compile.shared import Shared
from service.device.memory import Device
from service.engine.schedule.device_turns import DeviceTurns
from service.observability.metrics import Metrics
from service.observability.model_metrics import ModelMetrics
from service.settings import Settings
from service.start.devices import Devices
from service.start.progress import StartProgress
from service.storage.cache.cache import CheckpointCache
from service.text.generation_defaults import NO_DEFAULTS, GenerationDefaults
from service.weights.host_cache import HostCache

if TYPE_CHECKING:
    from tokenizers import Tokenizer as TokenizerBackend

    from service.compile.program import Executable


@dataclass(frozen=True)
class CommonParts:
    """The parts of a model that starts of one process share."""

    executables: "Shared[Mapping[str, Executable]]" = field(default_factory=Shared)  # by the key of their bundle
    turns: DeviceTurns = field(default_factory=DeviceTurns)
    tokenizers: "Shared[TokenizerBackend]" = field(default_factory=Shared)  # by the sha256 of tokenizer.json
    host_cache: HostCache = field(default_factory=lambda: HostCache(0))


@dataclass(frozen=True)
class StartContext:
    """The start of one model: of a service, for a request, of a batch run or of a prewarm."""

    settings: Settings
    metrics: Metrics
    progress: StartProgress
    on_engine_failure: Callable[[], None] = lambda: None  # called from the device thread if the engine dies
    model_metrics: ModelMetrics = field(default_factory=ModelMetrics)  # of the model's requests and engine
    failed: threading.Event = field(default_factory=threading.Event)  # set when a task fails; ends the transfers
    defaults: GenerationDefaults = NO_DEFAULTS  # the operator's for this model
    generations: Mapping[str, int] = field(default_factory=dict)  # by file of a bucket: the one to serve
    common: CommonParts = field(default_factory=CommonParts)  # with other starts
    devices: Devices | None = None  # found by an earlier start of this process
    memory_share: float = 1.0  # of the device memory for models; a model that needs more for its weights gets all
    # Called before weights are read or caches allocated, with the bytes that the model takes on each of some devices;
    # returns once there is room, or raises why there never will be.
    make_room: Callable[[int, Sequence[Device]], None] = lambda num_bytes, devices: None

    @cached_property
    def cache(self) -> CheckpointCache | None:
        """The cache that keeps pulled checkpoints; None with MODEL_STREAM, where a file would take memory twice."""
        if self.settings.model_stream:
            return None
        return CheckpointCache(self.settings.local_model_cache, max_checkpoints=self.settings.max_cached_checkpoints)

    @property
    def load_limits(self) -> LoadLimits:
        """What loading weights may use."""
        return LoadLimits(self.cache, self.progress.pulled, self.settings.stream_staging_bytes, self.failed)
