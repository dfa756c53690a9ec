"""From settings to a model that answers: locate, then weights, executables and tokenizer side by side, then warm.

Runs on a thread of its own while the port is already open; the first file of the start that imports jax.
"""

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jax
import numpy as np

from service.api.dependencies import ServedModel
from service.checkpoint.cache import CheckpointCache
from service.checkpoint.located import LocatedCheckpoint, locate
from service.checkpoint.location import HubLocation, parse_location
from service.checkpoint.recipe import check_tensors, load_weights, weight_shapes
from service.checkpoint.source import open_source
from service.checkpoint.transfer import TransferLimits
from service.compile.aot import compile_programs
from service.compile.counter import CompileCounter
from service.device.memory import Device, device_memory_bytes
from service.engine.engine import Engine
from service.engine.request import Request, Sampling
from service.engine.runner import Runner, engine_programs
from service.engine.shapes import EngineShapes
from service.engine.sizing import fit_engine
from service.models.decoder import Decoder
from service.models.registry import read_config
from service.observability.metrics import Metrics
from service.settings import Settings
from service.startup import Phase, Startup
from service.text.chat_template import ChatTemplate
from service.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

DEMO_NAME = "levserve-demo"
# On a CPU the device's memory is everybody's; on an accelerator it is ours.
CPU_MEMORY_FRACTION = 0.5


@dataclass(frozen=True)
class LoadedModel:
    """A model that has produced a real token."""

    served: ServedModel
    engine: Engine
    compiles: CompileCounter


def load_model(settings: Settings, startup: Startup, metrics: Metrics, on_failure: Callable[[], None]) -> LoadedModel:
    """Bring a model up.

    Args:
        settings: what to serve and how.
        startup: told how far it is.
        metrics: where the engine will count.
        on_failure: called from the device thread if the engine dies.

    Raises:
        StartError: it cannot be served; the message says why and what to do.
    """
    compiles = CompileCounter(lambda: _count_compile(startup, metrics))
    cache = CheckpointCache(settings.local_model_cache, max_checkpoints=settings.max_cached_models)
    with startup.phase(Phase.LOCATE) as facts:
        located = _locate(settings)
        device = jax.devices()[0]
        dtype = _choose_dtype(settings, located, device.platform)
        config = read_config(located.uri, located.hub_config)
        model = Decoder(config, dtype)
        facts |= {
            "uri": located.uri,
            "model_type": config.model_type,
            "dtype": dtype.name,
            "device": device.device_kind,
        }
    shapes = _fit(settings, model, device)
    weights, executables, (tokenizer, chat_template) = _side_by_side(
        lambda: _load_weights(located, model, cache, startup, sharding=jax.sharding.SingleDeviceSharding(device)),
        lambda: _compile(model, shapes, startup),
        lambda: _load_text(located, cache, startup),
    )
    with startup.phase(Phase.WARM):
        runner = Runner(shapes, weights, executables)
        runner.warm()
        engine = Engine(runner, shapes, metrics, max_requests=settings.max_concurrent_requests, on_failure=on_failure)
        engine.start()
        asyncio.run(_first_token(engine))
    served = ServedModel(
        name=settings.model_name or _default_name(settings),
        created=int(time.time()),
        engine=engine,
        tokenizer=tokenizer,
        chat_template=chat_template,
        max_model_len=shapes.max_context,
        vocab_size=config.vocab_size,
        stop_ids=tokenizer.eos_ids,
        defaults=tokenizer.defaults,
    )
    startup.finish(
        model=served.name, max_model_len=shapes.max_context, kv_pages=shapes.num_pages, slots=shapes.num_slots
    )
    return LoadedModel(served, engine, compiles)


def _locate(settings: Settings) -> LocatedCheckpoint:
    return locate(
        settings.checkpoint_uri or str(files("service") / "demo"),
        lambda location: open_source(
            location,
            cache_root=settings.local_model_cache,
            emulator_host=settings.storage_emulator_host,
            limits=TransferLimits(deadline_s=settings.pull_timeout),
        ),
        model_config_uri=settings.model_config_uri,
        tokenizer_uri=settings.tokenizer_uri,
    )


def _choose_dtype(settings: Settings, located: LocatedCheckpoint, platform: str) -> np.dtype:
    """Return what to compute in: `auto` is float32 on a CPU, where narrower types are emulated, else as saved."""
    saved = located.hub_config.get("dtype") or located.hub_config.get("torch_dtype") or "bfloat16"
    chosen = settings.dtype if settings.dtype != "auto" else ("float32" if platform == "cpu" else str(saved))
    return np.dtype(jax.numpy.dtype(chosen))


def _fit(settings: Settings, model: Decoder, device: Device) -> EngineShapes:
    fraction = settings.device_memory_fraction or (CPU_MEMORY_FRACTION if device.platform == "cpu" else 0.9)
    return fit_engine(
        model,
        memory_bytes=int(device_memory_bytes(device) * fraction),
        weights_bytes=_weights_bytes(model),
        max_num_seqs=settings.max_num_seqs,
        page_size=settings.page_size,
        max_prefill_tokens=settings.max_prefill_tokens,
        max_model_len=settings.max_model_len,
    )


def _weights_bytes(model: Decoder) -> int:
    shapes = weight_shapes(model.weight_specs(), model.dtype).values()
    return sum(shape.size * shape.dtype.itemsize for shape in shapes)


def _side_by_side(*parts: Callable[[], Any]) -> list[Any]:
    """Run each part on a thread of its own; the first failure is raised at once, whatever the others still do."""
    pool = ThreadPoolExecutor(len(parts), thread_name_prefix="start")
    futures = [pool.submit(part) for part in parts]
    try:
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            if future.done():
                future.result()
        return [future.result() for future in futures]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _load_weights(
    located: LocatedCheckpoint,
    model: Decoder,
    cache: CheckpointCache,
    startup: Startup,
    *,
    sharding: jax.sharding.Sharding,
) -> Mapping[str, jax.Array]:
    with startup.phase(Phase.WEIGHTS) as facts:
        tensors = located.pull_tensors(cache, startup.pulled)
        specs = model.weight_specs()
        check_tensors(located.uri, specs, {name: tensor.shape for name, tensor in tensors.items()})
        weights = load_weights(specs, tensors, model.dtype, sharding=sharding)
        facts |= {"tensors": len(tensors), "weights_bytes": _weights_bytes(model)}
    return weights


def _compile(model: Decoder, shapes: EngineShapes, startup: Startup) -> Mapping[str, jax.stages.Compiled]:
    with startup.phase(Phase.EXECUTABLES) as facts:
        programs = engine_programs(model, shapes, weight_shapes(model.weight_specs(), model.dtype))
        done = itertools.count(1)
        startup.count_executables(0, len(programs))
        compiled = compile_programs(
            programs,
            num_threads=os.cpu_count() or 1,
            on_compiled=lambda name: startup.count_executables(next(done), len(programs)),
        )
        facts["executables"] = len(compiled)
    return {name: program.executable for name, program in compiled.items()}


def _load_text(
    located: LocatedCheckpoint, cache: CheckpointCache, startup: Startup
) -> tuple[Tokenizer, ChatTemplate | None]:
    with startup.phase(Phase.TOKENIZER) as facts:
        folder = located.tokenizer.pull(cache, startup.pulled)
        tokenizer = Tokenizer.load(folder, located.tokenizer.source.uri)
        template = ChatTemplate.load(folder, tokenizer.special_tokens, located.tokenizer.source.uri)
        facts |= {"tokens": tokenizer.vocab_size, "has_chat_template": template is not None}
    return tokenizer, template


async def _first_token(engine: Engine) -> None:
    request = Request(id="warm", prompt_ids=(0,), max_tokens=1, sampling=Sampling(temperature=0.0))
    async for _ in engine.submit(request):
        pass


def _count_compile(startup: Startup, metrics: Metrics) -> None:
    metrics.xla_compiles.inc()
    if startup.is_ready:
        metrics.xla_compiles_after_ready.inc()
        logger.warning("XLA compiled after ready: a shape was missed ahead of time")


def _default_name(settings: Settings) -> str:
    uri = settings.checkpoint_uri
    if uri is None:
        return DEMO_NAME
    location = parse_location(uri)
    return location.repo if isinstance(location, HubLocation) else location.uri.rstrip("/").rsplit("/", 1)[-1]
