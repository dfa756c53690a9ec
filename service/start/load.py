"""From settings to a model that answers. Each part of the start runs on a thread of its own as soon as it can.

    devices   import jax, find devices ─┬─> plan ─┬─> executables   a bundle, or compile ─> state ┬─> warm ┬─> answering
    locate    list, pin, read config ─┬─┘         ├─> tokenizer     pulled meanwhile ─────────────┼────────┤
                                      │           └─> beside        what else is needed ──────────┼────────┘
                                      └─> weights     pull and join; the plan says where they lie ┘

Executables and weights take long and leave Python's lock alone, so what keeps it, the tokenizer's reading and the
imports of `beside`, comes after they have begun; and what a processor can do meanwhile is done while jax is imported:
weights for a CPU are loaded, and the bundle that was used last is read. Nothing is imported before its part runs: a
warm start imports no Levanter, Haliax, Equinox or Transformers. `completion` is what follows.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from service.bundles.location import local_folder
from service.bundles.prefetch import BundleAhead
from service.checkpoint.discover import LocatedCheckpoint
from service.checkpoint.load import LoadLimits, load_checkpoint
from service.device.memory import Device
from service.observability.metrics import Metrics
from service.settings import Settings
from service.start.discover import checkpoint_uri, find_devices, locate_checkpoint
from service.start.graph import StartParts
from service.start.prefetch import expected_weights, load_ahead
from service.start.progress import Phase, Startup
from service.storage.cache.cache import CheckpointCache
from service.storage.location import HubLocation, parse_location

if TYPE_CHECKING:
    import jax

    from service.api.dependencies import ServedModel
    from service.bundles.lookup import Bundles
    from service.compile.counter import CompileCounter
    from service.engine.device_state import DeviceState
    from service.engine.engine import Engine
    from service.engine.runner import Runner
    from service.start.executables import Executables
    from service.start.spec import EnginePlan
    from service.text.chat_template import ChatTemplate
    from service.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

DEMO_NAME = "levserve-demo"


@dataclass(frozen=True)
class LoadedModel:
    """A model that can be asked."""

    served: "ServedModel"
    engine: "Engine"
    complete: Callable[[], None]
    """Brings what is still missing and declares the service ready."""


@dataclass(frozen=True)
class _Devices:
    devices: tuple[Device, ...]
    compiles: "CompileCounter"


@dataclass(frozen=True)
class _Text:
    tokenizer: "Tokenizer"
    chat_template: "ChatTemplate | None"


class ModelLoad:
    """One model on its way up."""

    def __init__(
        self, settings: Settings, startup: Startup, metrics: Metrics, on_failure: Callable[[], None] = lambda: None
    ) -> None:
        """Prepare a load.

        Args:
            settings: what to serve and how.
            startup: told how far it is.
            metrics: where the engine will count.
            on_failure: called from the device thread if the engine dies.
        """
        self._settings = settings
        self._startup = startup
        self._metrics = metrics
        self._on_failure = on_failure
        # Streamed weights are never written: where the file system is memory, a copy there would cost it twice.
        self._cache = (
            None
            if settings.model_stream
            else CheckpointCache(settings.local_model_cache, max_checkpoints=settings.max_cached_models)
        )

    def run(self, beside: Callable[[], object] = lambda: None) -> LoadedModel:
        """Bring the model up; returns when it can be asked, after a start without a bundle only when all of it has run.

        Args:
            beside: run at the same time, once executables and weights are on their way.

        Raises:
            StartError: it cannot be served; the message says why and what to do.
        """
        ahead = BundleAhead(local_folder(self._settings))
        parts = StartParts()
        usable: Future[Executables] = Future()
        has_begun, may_load_rest = threading.Event(), threading.Event()
        devices = parts.begin("devices", lambda: _Devices(*find_devices(self._startup, self._metrics)))
        located = parts.begin("locate", lambda: locate_checkpoint(self._settings, self._startup))
        plan = parts.begin("plan", lambda: self._plan(devices.result(), located.result()))
        bundles = parts.begin("bundles", lambda: self._bundles(plan.result(), located.result(), ahead))
        weights = parts.begin("weights", lambda: self._load_weights(located.result(), plan))
        executables = parts.begin(
            "executables", lambda: self._obtain(plan.result(), bundles.result(), usable, has_begun, may_load_rest)
        )
        state = parts.begin("state", lambda: _begin_state(plan.result(), usable.result()))
        text = parts.begin("text", lambda: self._load_text(located.result(), has_begun))
        aside = parts.begin("beside", lambda: (has_begun.wait(), beside()))
        parts.wait_for(weights, state)
        engine, runner = self._warm(plan.result(), weights.result(), usable.result(), state.result())
        parts.wait_for(text, aside)
        self._startup.answer()
        served = self._served(plan.result(), engine, text.result())

        from service.start.finish import Completion

        completion = Completion(
            served.name,
            plan.result(),
            bundles.result(),
            devices.result().compiles,
            engine,
            runner,
            executables,
            may_load_rest.set,
            self._startup,
        )
        return LoadedModel(served, engine, completion.run)

    def _plan(self, devices: _Devices, located: LocatedCheckpoint) -> "EnginePlan":
        with self._startup.phase(Phase.IMPORT, "engine"):
            from service.start.spec import plan_engine
        plan = plan_engine(self._settings, located, devices.devices)
        logger.info(
            "planned",
            extra={
                "model_type": plan.config.model_type,
                "dtype": plan.dtype.name,
                "weights_bytes": plan.weights_bytes,
                "tensor_parallel": plan.mesh.num_devices,
                "kv_head_copies": plan.config.kv_copies,
                "bundle": plan.key.digest,
                **asdict(plan.shapes),
            },
        )
        return plan

    def _bundles(self, plan: "EnginePlan", located: LocatedCheckpoint, ahead: BundleAhead) -> "Bundles":
        from service.bundles.lookup import Bundles

        return Bundles.of_settings(self._settings, located.uri, self._metrics, ahead)

    def _obtain(
        self,
        plan: "EnginePlan",
        bundles: "Bundles",
        usable: "Future[Executables]",
        has_begun: threading.Event,
        may_load_rest: threading.Event,
    ) -> "Executables":
        from service.start.executables import obtain

        try:
            return obtain(
                plan,
                bundles,
                self._startup,
                on_begun=has_begun.set,
                on_usable=usable.set_result,
                before_rest=may_load_rest.wait,
            )
        except BaseException as error:
            if not usable.done():
                usable.set_exception(error)
            raise

    def _load_weights(self, located: LocatedCheckpoint, plan: "Future[EnginePlan]") -> "Mapping[str, jax.Array]":
        limits = LoadLimits(self._cache, self._startup.pulled, self._settings.stream_staging_bytes)
        expected = expected_weights(self._settings, located)
        if expected is None:
            plan.result()  # the phase begins with the bytes
        with self._startup.phase(Phase.WEIGHTS) as facts:
            ahead = None
            if expected is not None:
                ahead = load_ahead(located, expected, plan, limits)
            goal = plan.result()
            facts["weights_bytes"] = goal.weights_bytes
            if ahead is not None:
                return goal.mesh.alias_host_arrays(ahead.weights)
            return load_checkpoint(located, goal.specs, goal.dtype, mesh=goal.mesh, limits=limits).weights

    def _load_text(self, located: LocatedCheckpoint, has_begun: threading.Event) -> _Text:
        with self._startup.phase(Phase.TOKENIZER, "pull"):
            from service.checkpoint.tokenizer_files import pull_tokenizer

            folder = pull_tokenizer(located, self._cache, self._startup.pulled).path
        has_begun.wait()
        with self._startup.phase(Phase.TOKENIZER) as facts:
            from service.text.load import load_chat_template, load_tokenizer

            tokenizer = load_tokenizer(folder, located.tokenizer.source.uri)
            template = load_chat_template(folder, tokenizer.special_tokens, located.tokenizer.source.uri)
            facts |= {"tokens": tokenizer.vocab_size, "has_chat_template": template is not None}
        return _Text(tokenizer, template)

    def _warm(
        self,
        plan: "EnginePlan",
        weights: "Mapping[str, jax.Array]",
        executables: "Executables",
        state: "DeviceState",
    ) -> "tuple[Engine, Runner]":
        from service.engine.engine import Engine
        from service.engine.runner import Runner

        with self._startup.phase(Phase.WARM):
            runner = Runner(plan.shapes, plan.stages, weights, executables.by_name, state)
            if not executables.is_hit:  # a bundle is made after this, so what it holds has run
                runner.warm()
            max_requests = self._settings.max_concurrent_requests
            engine = Engine(runner, plan.shapes, self._metrics, max_requests=max_requests, on_failure=self._on_failure)
            engine.start()
        return engine, runner

    def _served(self, plan: "EnginePlan", engine: "Engine", text: _Text) -> "ServedModel":
        from service.api.dependencies import ServedModel

        return ServedModel(
            name=self._settings.model_name or _default_name(self._settings),
            created=int(time.time()),
            engine=engine,
            tokenizer=text.tokenizer,
            chat_template=text.chat_template,
            max_model_len=plan.shapes.max_context,
            vocab_size=plan.config.vocab_size,
            stop_ids=text.tokenizer.eos_ids,
            defaults=text.tokenizer.defaults,
        )


def _begin_state(plan: "EnginePlan", executables: "Executables") -> "DeviceState":
    """Make what a first step needs besides weights, while those are coming."""
    from service.engine.device_state import DeviceState

    state = DeviceState(plan.stages, executables.by_name)
    state.begin_caches()
    return state


def _default_name(settings: Settings) -> str:
    if settings.checkpoint_uri is None:
        return DEMO_NAME
    location = parse_location(checkpoint_uri(settings))
    return location.repo if isinstance(location, HubLocation) else location.uri.rstrip("/").rsplit("/", 1)[-1]
