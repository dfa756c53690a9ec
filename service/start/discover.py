"""What every start begins with, to serve as to prewarm: the devices, and the checkpoint; neither needs the other."""

import logging
from importlib.resources import files
from typing import TYPE_CHECKING

from service.checkpoint.discover import LocatedCheckpoint, OpenSource, locate
from service.device.memory import Device
from service.observability.metrics import Metrics
from service.settings import Settings
from service.start.conversions import find_conversion
from service.start.imports import as_needed_to_run
from service.start.progress import Phase, Startup
from service.storage.retry import TransferLimits
from service.storage.source import open_source

if TYPE_CHECKING:
    from service.compile.counter import CompileCounter

logger = logging.getLogger(__name__)


def checkpoint_uri(settings: Settings) -> str:
    """Return the address of what is served; the demo model's if none is given."""
    return settings.checkpoint_uri or str(files("service") / "demo")


def find_devices(startup: Startup, metrics: Metrics) -> "tuple[tuple[Device, ...], CompileCounter]":
    """Import jax, begin to count its compilations, and find the devices of this host."""
    with startup.phase(Phase.IMPORT, "jax") as facts:
        with as_needed_to_run():
            import jax
        from service.compile.counter import CompileCounter

        compiles = CompileCounter(lambda: _count_compile(startup, metrics))
        devices = tuple(jax.local_devices())
        _use_once(devices[0])
        facts |= {"device": devices[0].device_kind, "devices": len(devices)}
    return devices, compiles


def _use_once(device: Device) -> None:
    """Place an array while no other thread does, because two threads that both are the first to do so may crash.

    jaxlib's list of devices makes the type of its iterator when it is first walked through, and Python may go on with
    another thread in the middle of that: each audit hook, and jax's imports install one, is Python code.
    """
    import jax
    import numpy as np

    place = jax.sharding.SingleDeviceSharding(device)  # pyright: ignore[reportArgumentType]
    jax.make_array_from_callback((1,), place, lambda _: np.zeros(1, np.float32))


def opener(settings: Settings) -> OpenSource:
    """Return what opens an address, with the cache and the emulator of the settings."""
    return lambda location: open_source(
        location,
        cache_root=settings.local_model_cache,
        emulator_host=settings.storage_emulator_host,
        limits=TransferLimits(deadline_s=settings.pull_timeout),
    )


def locate_checkpoint(settings: Settings, startup: Startup) -> LocatedCheckpoint:
    """List the checkpoint once, pin every object's version, and read its configuration.

    Raises:
        CheckpointError: something is missing, ambiguous or malformed.
        SettingsError: an address is malformed.
    """
    with startup.phase(Phase.LOCATE) as facts:
        uri, config_uri, tokenizer_uri = checkpoint_uri(settings), settings.model_config_uri, settings.tokenizer_uri
        if (
            converted := find_conversion(settings, uri, opener(settings))
        ) is not None:  # it has its configuration and tokenizer beside it
            uri, config_uri, tokenizer_uri = converted, None, None
        located = locate(uri, opener(settings), model_config_uri=config_uri, tokenizer_uri=tokenizer_uri)
        facts |= {"uri": located.uri, "model_type": located.hub_config.get("model_type")}
    return located


def _count_compile(startup: Startup, metrics: Metrics) -> None:
    metrics.xla_compiles.inc()
    if startup.is_ready:
        metrics.xla_compiles_after_ready.inc()
        logger.warning("XLA compiled after ready: a shape was missed ahead of time")
