"""The context passed to every task of a start."""

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from service.checkpoint.limits import LoadLimits
from service.compile.lru_cache import LruCache
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
    """Caches and schedulers shared by all starts of a process."""

    # By bundle key: those on the devices of each engine.
    executables: "LruCache[Sequence[Mapping[str, Executable]]]" = field(default_factory=LruCache)
    turns: defaultdict[int, DeviceTurns] = field(default_factory=lambda: defaultdict(DeviceTurns))  # by engine
    tokenizers: "LruCache[TokenizerBackend]" = field(default_factory=LruCache)  # by the sha256 of tokenizer.json
    host_cache: HostCache = field(default_factory=lambda: HostCache(0))


@dataclass(frozen=True)
class StartContext:
    """The settings and shared objects of one model's start."""

    settings: Settings
    metrics: Metrics
    progress: StartProgress
    on_engine_failure: Callable[[], None] = lambda: None  # called from the device thread if the engine dies
    model_metrics: ModelMetrics = field(default_factory=ModelMetrics)
    failed: threading.Event = field(default_factory=threading.Event)  # set when a task fails; stops transfers
    defaults: GenerationDefaults = NO_DEFAULTS  # the operator's generation defaults for this model
    generations: Mapping[str, int] = field(default_factory=dict)  # pinned generation by file name
    common: CommonParts = field(default_factory=CommonParts)  # shared with other starts
    devices: Devices | None = None  # from an earlier start of this process
    memory_share: float = 1.0  # of the device memory; a model whose weights need more gets all of it
    num_early: Callable[[], int] = lambda: 0  # requests that came before the model and are not answered yet
    # Called with the model's bytes per device before weights are read or caches allocated; returns once there is room,
    # or raises if there never will be.
    make_room: Callable[[int, Sequence[Device]], None] = lambda num_bytes, devices: None

    @cached_property
    def cache(self) -> CheckpointCache | None:
        """The checkpoint cache; None with MODEL_STREAM, where files would use memory a second time."""
        if self.settings.model_stream:
            return None
        return CheckpointCache(self.settings.local_model_cache, max_checkpoints=self.settings.max_cached_checkpoints)

    @property
    def load_limits(self) -> LoadLimits:
        return LoadLimits(self.cache, self.progress.pulled, self.settings.stream_staging_bytes, self.failed)
