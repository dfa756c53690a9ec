"""Weights of a located checkpoint, loaded to the device.

A Hugging Face snapshot in a bucket streams: its bytes become weights and, if there is a cache, files at the same time.
A snapshot on this machine, or complete in the cache, is read from its files the same way. A Levanter checkpoint is
pulled first and read from the copy whose bytes were checked.
"""

import logging
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from service.checkpoint import levanter
from service.checkpoint.adapters.read import read_updates
from service.checkpoint.discover import LocatedCheckpoint
from service.checkpoint.layout import LevanterLayout
from service.checkpoint.limits import LoadLimits
from service.models.weight_spec import FOUR_BITS, WeightSpec
from service.observability.progress import Progress
from service.storage.cache.cache import CachedSource, CheckpointCache, private_cache
from service.weights.assembly import assemble_weights
from service.weights.stream import stream_weights

if TYPE_CHECKING:
    import jax

    from service.device.mesh import DeviceMesh

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedWeights[Weight]:
    """A checkpoint's weights, by name; the cache keeps their files until `release` or the end of the process."""

    weights: dict[str, Weight]
    release: Callable[[], None] = lambda: None


def load_checkpoint(
    located: LocatedCheckpoint, specs: Sequence[WeightSpec], *, mesh: "DeviceMesh", limits: LoadLimits
) -> "LoadedWeights[jax.Array]":
    """Load a checkpoint's weights to the device.

    Args:
        located: the checkpoint.
        specs: the model's weights.
        mesh: where they are placed, by the names of their axes.
        limits: the resources of the load.

    Raises:
        CheckpointError: the bytes did not come whole, or are not what their headers or the configuration say.
    """
    # XLA packs numbers of 4 bits in memory of its own, and the host's array is not needed any more.
    if mesh.is_host and all(spec.dtype not in FOUR_BITS for spec in specs):
        loaded = load_on_host(located, specs, limits)
        return LoadedWeights(mesh.alias_host_arrays(loaded.weights), loaded.release)
    return _load(located, specs, mesh, limits)


def is_on_this_machine(located: LocatedCheckpoint, cache: CheckpointCache | None) -> bool:
    """Return whether the weights, the adapter's and the draft model's can be loaded without a transfer."""
    files = [located.weights, *([] if located.adapter is None else [located.adapter.files])]
    is_draft_here = located.draft is None or is_on_this_machine(located.draft, cache)
    return is_draft_here and all(each.source.is_on_this_machine(each.objects, cache) for each in files)


def load_on_host(
    located: LocatedCheckpoint,
    specs: Sequence[WeightSpec],
    limits: LoadLimits,
) -> LoadedWeights[np.ndarray]:
    """Load a checkpoint's weights into the host's memory; a Hugging Face snapshot needs no jax for that.

    Args:
        located: the checkpoint.
        specs: the model's weights.
        limits: the resources of the load.

    Raises:
        CheckpointError: as `load_checkpoint`.
    """
    return _load(located, specs, None, limits)


def read_levanter(
    located: LocatedCheckpoint,
    cache: CheckpointCache | None,
    progress: Progress,
    cancelled: threading.Event | None = None,
) -> tuple[dict[str, np.ndarray], Callable[[], None]]:
    """Return a Levanter checkpoint's tensors under Hugging Face's names, and what releases their files in the cache.

    Raises:
        CheckpointError: they did not come whole, or are not what the configuration describes.
    """
    files = located.weights
    pulled = files.source.pull(files.objects, cache or private_cache(), progress, cancelled)
    try:
        tensors = levanter.read_tensors(located.uri, pulled.path / files.folder, located.hub_config)
    except BaseException:
        pulled.release()
        raise
    if cache is None and isinstance(files.source, CachedSource):
        shutil.rmtree(pulled.path, ignore_errors=True)  # it may be memory
    return tensors, pulled.release


# The weights are numpy arrays without a mesh, else arrays on its devices.
def _load(
    located: LocatedCheckpoint, specs: Sequence[WeightSpec], mesh: "DeviceMesh | None", limits: LoadLimits
) -> LoadedWeights[Any]:
    updates = {} if located.adapter is None else read_updates(located.adapter, specs, limits)
    if isinstance(located.layout, LevanterLayout):
        tensors, release = read_levanter(located, limits.cache, limits.progress, limits.cancelled)
        try:
            weights = assemble_weights(specs, tensors, mesh=mesh, uri=located.uri, updates=updates)
        except BaseException:
            release()
            raise
        return LoadedWeights(weights, release)
    with located.weights.source.open_files(
        located.weights.objects,
        located.layout.weights,
        cache=limits.cache,
        progress=limits.progress,
        cancelled=limits.cancelled,
    ) as opened:
        staging_bytes = limits.max_staging_bytes
        streamed = stream_weights(specs, opened, mesh=mesh, updates=updates, max_staging_bytes=staging_bytes)
        opened.cache_copies(streamed.file_sums, streamed.disk_fault)
    return LoadedWeights(streamed.weights, opened.release)
