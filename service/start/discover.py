"""The first two tasks of every start, which run in parallel: finding the devices and locating the checkpoint."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from service.checkpoint.discover import LocatedCheckpoint, locate
from service.checkpoint.file_set import OpenSource
from service.checkpoint.load import is_on_this_machine
from service.device.memory import ACCELERATOR_FRACTION, NVIDIA_FILES, Device
from service.errors import NotDownloaded, SettingsError, UnusableAccelerator
from service.settings import Settings
from service.settings.compiler import dispatch_to_gpus_asynchronously, names_platform, size_gpu_pool
from service.start.context import StartContext
from service.start.conversions import find_conversion
from service.start.devices import Devices
from service.start.imports import quick_google_import, quick_jax_import
from service.start.progress import Phase
from service.storage.location import parse_location
from service.storage.retry import TransferLimits
from service.storage.source import open_source

logger = logging.getLogger(__name__)

DEVICE_FILES = Path("/dev")
GPU_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")


def checkpoint_uri(settings: Settings) -> str:
    """Return the address of the served checkpoint, by default the demo model.

    Raises:
        SettingsError: the settings name a catalogue instead of a single model.
    """
    if settings.has_catalogue:
        reason = "is required: GCS_BUCKET, CATALOGUE_URI and MODELS_CONFIG name several models."
        raise SettingsError("MODEL_URI", reason)
    return settings.checkpoint_uri or demo_uri()


def demo_uri() -> str:
    """Return the path of the demo model in this package."""
    return str(files("service") / "demo")


def opener(settings: Settings, generations: Mapping[str, int] | None = None) -> OpenSource:
    """Return a function that opens addresses with the cache, emulator and deadline of the settings.

    Args:
        settings: the settings of the start.
        generations: pinned generations for files of the checkpoint itself; None for the live ones.
    """
    cache_root, emulator_host = settings.local_model_cache, settings.storage_emulator_host
    limits = TransferLimits(deadline_s=settings.pull_timeout)
    own = parse_location(checkpoint_uri(settings)) if generations else None
    return lambda location: open_source(
        location,
        cache_root=cache_root,
        emulator_host=emulator_host,
        limits=limits,
        generations=generations if location == own else None,
    )


def find_devices(context: StartContext) -> Devices:
    """Import jax, start counting its compilations and find the devices, unless an earlier start did.

    Raises:
        SettingsError: a setting does not apply to these devices.
        UnusableAccelerator: see `check_platform`.
    """
    if context.devices is not None:
        return context.devices
    size_gpu_pool(context.settings.device_memory_fraction or ACCELERATOR_FRACTION)
    dispatch_to_gpus_asynchronously()
    with context.progress.phase(Phase.IMPORT, "jax") as facts:
        with quick_jax_import():
            import jax
        from service.compile.counter import CompileCounter

        compiles = CompileCounter(lambda is_planned: _count_compile(context, is_planned=is_planned))
        devices = tuple(jax.local_devices())
        check_platform(devices[0])
        _place_one_array(devices[0])
        facts |= {"device": devices[0].device_kind, "devices": len(devices)}
    if context.settings.host_cache_bytes and devices[0].platform == "cpu" and len(devices) == 1:
        raise SettingsError(
            "HOST_CACHE_BYTES", "needs an accelerator: a CPU's weights are in host memory. Raise MAX_CACHED_MODELS."
        )
    return Devices(devices, compiles)


def check_platform(device: Device, folder: Path = DEVICE_FILES) -> None:
    """Check that an NVIDIA GPU is not left unused in silence, because its driver is older than JAX's plugin needs.

    Raises:
        UnusableAccelerator: it would be.
    """
    if device.platform != "cpu" or names_platform():
        return
    installed = [package for package in GPU_PLUGINS if find_spec(package)]
    found = sorted(folder.glob(NVIDIA_FILES))
    if installed and found:
        raise UnusableAccelerator(str(found[0]), installed[0])


def _place_one_array(device: Device) -> None:
    """Place an array before any other thread does, because concurrent first calls may crash jaxlib.

    jaxlib's list of devices creates its iterator type on first use, and may lose the GIL while doing so: audit hooks
    are Python code, and importing jax installs one.
    """
    import jax
    import numpy as np

    sharding = jax.sharding.SingleDeviceSharding(device)  # pyright: ignore[reportArgumentType]
    jax.make_array_from_callback((1,), sharding, lambda _: np.zeros(1, np.float32))


def locate_checkpoint(context: StartContext) -> LocatedCheckpoint:
    """List the checkpoint once, pin every object's version, and read its configuration.

    Raises:
        CheckpointError: a file is missing, ambiguous or malformed, or AUTO_DOWNLOAD_MODELS forbids downloading it.
        SettingsError: an address is malformed.
    """
    settings = context.settings
    with context.progress.phase(Phase.LOCATE) as facts, quick_google_import():
        uri, config_uri, tokenizer_uri = checkpoint_uri(settings), settings.model_config_uri, settings.tokenizer_uri
        open_pinned = opener(settings, context.generations)
        converted = find_conversion(settings, uri, open_pinned)
        if converted is not None:  # a conversion includes configuration and tokenizer
            uri, config_uri, tokenizer_uri = converted, None, None
        located = locate(
            uri,
            open_pinned,
            model_config_uri=config_uri,
            tokenizer_uri=tokenizer_uri,
            adapter_uri=settings.adapter_uri,
            cache=context.cache,
        )
        if settings.draft_model_uri is not None:
            draft = locate(settings.draft_model_uri, open_pinned, cache=context.cache, target=located)
            located = replace(located, draft=draft)
        if not settings.auto_download_models and not is_on_this_machine(located, context.cache):
            raise NotDownloaded(located.uri)
        facts |= {"uri": located.uri, "model_type": located.hub_config.get("model_type")}
        if located.adapter is not None:
            facts["adapter"] = located.adapter.uri
        if located.draft is not None:
            facts["draft_model"] = located.draft.uri
    return located


def _count_compile(context: StartContext, *, is_planned: bool) -> None:
    context.metrics.xla_compiles.inc()
    if context.progress.is_answering and not is_planned:
        context.metrics.xla_compiles_after_ready.inc()
        logger.warning("unexpected XLA compilation: a shape was missing from the ahead-of-time set")
