"""From a located checkpoint to weights on the device, by the shortest way there is.

A Hugging Face snapshot in a bucket streams: its bytes become weights and, where there is a cache, files beside at the
same time. A snapshot on this machine, or whole in the cache, is read from its files the same way. A Levanter checkpoint
is pulled first and read from the copy whose bytes were checked.
"""

import logging
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from service.checkpoint import levanter
from service.checkpoint.discover import LocatedCheckpoint
from service.checkpoint.layout import LevanterLayout
from service.errors import StorageFull, TransferFailed
from service.models.weight_spec import WeightSpec
from service.storage import gzip as content
from service.storage.cache.cache import Bucket, CacheUnusable, CheckpointCache, PulledCheckpoint, private_cache
from service.storage.download import download
from service.storage.fetch import ByteRanges
from service.storage.file_ranges import FileRanges
from service.storage.local import LocalSource
from service.storage.objects import ObjectInfo
from service.storage.part_file import PartFile
from service.storage.progress import Progress, show_progress
from service.storage.retry import Patience, TransferLimits
from service.weights.check import check_tensors, load_weights
from service.weights.header import Origin
from service.weights.stream import StreamedWeights, WeightOrder, stream_weights

if TYPE_CHECKING:
    import jax

    from service.device.mesh import DeviceMesh

logger = logging.getLogger(__name__)

# A disk needs few readers; more of them than processors wait for one another and for Python's lock. And they are to ask
# seldom for that lock, because they share it with imports.
FILE_LIMITS = TransferLimits(num_workers=2, slice_bytes=16 * 1024 * 1024, piece_bytes=8 * 1024 * 1024)


@dataclass(frozen=True)
class Loaded[Weight]:
    """A checkpoint's weights, by name; the cache keeps the files they came from until `release` or the end."""

    weights: dict[str, Weight]
    release: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class LoadLimits:
    """What a load may use, and whom it tells."""

    cache: CheckpointCache | None  # keeps the files for the next start; None: nothing is kept (MODEL_STREAM)
    progress: Progress  # told what is expected and what comes
    max_staging_bytes: int  # of the host's memory, besides the weights
    cancelled: threading.Event | None = None  # set by whoever wants it to stop


def load_checkpoint(
    located: LocatedCheckpoint, specs: Sequence[WeightSpec], dtype: np.dtype, *, mesh: "DeviceMesh", limits: LoadLimits
) -> "Loaded[jax.Array]":
    """Bring a checkpoint's weights to the device.

    Args:
        located: which checkpoint.
        specs: what the model is made of.
        dtype: what to cast to.
        mesh: where to place the weights, by the names of their axes.
        limits: what this may use.

    Raises:
        CheckpointError: the bytes did not come whole, or are not what their headers or the configuration say.
    """
    place = None if mesh.is_host else mesh
    loaded = _load(located, WeightOrder(located.uri, tuple(specs), dtype, place, limits.max_staging_bytes), limits)
    if place is None:
        return Loaded(mesh.alias_host_arrays(loaded.weights), loaded.release)
    return loaded


def load_on_host(
    located: LocatedCheckpoint,
    specs: Sequence[WeightSpec],
    dtype: np.dtype,
    limits: LoadLimits,
) -> Loaded[np.ndarray]:
    """Bring the weights of a Hugging Face snapshot into the host's memory, while jax may still be imported.

    Args:
        located: which checkpoint.
        specs: what the model is made of.
        dtype: what to cast to.
        limits: what this may use.

    Raises:
        CheckpointError: as `load_checkpoint`.
    """
    return _load(located, WeightOrder(located.uri, tuple(specs), dtype, None, limits.max_staging_bytes), limits)


def read_levanter(
    located: LocatedCheckpoint,
    cache: CheckpointCache | None,
    progress: Progress,
    cancelled: threading.Event | None = None,
) -> tuple[dict[str, np.ndarray], Callable[[], None]]:
    """Read a Levanter checkpoint's tensors under Hugging Face's names, and return what lets go of their files.

    Raises:
        CheckpointError: they did not come whole, or are not what the configuration describes.
    """
    group = located.weights
    pulled = group.source.pull(group.objects, cache or private_cache(), progress, cancelled)
    try:
        tensors = levanter.read_tensors(located.uri, pulled.path / group.folder, located.hub_config)
    except BaseException:
        pulled.release()
        raise
    if cache is None and isinstance(group.source, Bucket):
        shutil.rmtree(pulled.path, ignore_errors=True)  # it may be memory
    return tensors, pulled.release


# What is loaded lies on the host where the order names no mesh, else on the mesh's devices.
def _load(located: LocatedCheckpoint, order: WeightOrder, limits: LoadLimits) -> Loaded[Any]:
    weights, source = located.layout.weights, located.weights.source
    if isinstance(located.layout, LevanterLayout):
        return _from_levanter(located, order, limits)
    if isinstance(source, Bucket) and not any(content.is_packed(info) for info in weights):
        return _BucketLoad(located, source, order, limits.progress).load(limits.cache, limits.cancelled)
    pulled = source.pull(located.weights.objects, limits.cache or private_cache(), limits.progress, limits.cancelled)
    # What was pulled has been counted already; what lies here is counted as it is read.
    counted = limits.progress if isinstance(source, LocalSource) else Progress()
    return _from_files(pulled, order, weights, counted, limits.cancelled)


class _BucketLoad:
    """Streams a snapshot from a bucket: into the cache as well, or past it."""

    def __init__(self, located: LocatedCheckpoint, source: Bucket, order: WeightOrder, progress: Progress) -> None:
        self._located, self._source, self._order, self._progress = located, source, order, progress
        self._streamed: StreamedWeights | None = None

    def load(self, cache: CheckpointCache | None, cancelled: threading.Event | None) -> Loaded[Any]:
        """Load, keeping the files if there is a cache that can."""
        pulled = None if cache is None else self._keep(cache, cancelled)
        if self._streamed is not None:
            return Loaded(self._streamed.weights, pulled.release if pulled is not None else lambda: None)
        if pulled is not None:  # all of it was in the cache
            return _from_files(pulled, self._order, self._located.layout.weights, self._progress, cancelled)
        self._progress.expect(sum(info.size_bytes for info in self._located.layout.weights))
        with show_progress(self._progress, self._source.uri):
            patience = Patience(self._source.limits, cancelled)
            origins = [Origin(self._source, info) for info in self._located.layout.weights]
            return Loaded(stream_weights(self._order, origins, self._progress, patience).weights)

    def _keep(self, cache: CheckpointCache, cancelled: threading.Event | None) -> PulledCheckpoint | None:
        patience = Patience(self._source.limits, cancelled)
        try:
            return cache.fill(self._source, self._located.weights.objects, self._progress, patience, self._bring)
        except (CacheUnusable, StorageFull, TransferFailed) as error:
            # A disk that is full or fails must not keep a model from being served.
            if self._streamed is None and isinstance(error, TransferFailed):
                raise
            facts = {"cache": str(cache.root), "reason": str(error)}
            logger.warning("the cache cannot keep the checkpoint; its weights stream past it", extra=facts)
            return None

    def _bring(
        self, bucket: ByteRanges, missing: Sequence[ObjectInfo], folder: Path, progress: Progress, patience: Patience
    ) -> dict[str, str]:
        weights = self._located.layout.weights

        def part_of(info: ObjectInfo) -> PartFile | None:
            return PartFile(bucket.uri, info, folder) if info in missing else None

        sums = download(bucket, [info for info in missing if info not in weights], folder, progress, patience)
        with FileRanges(bucket.uri, folder) as files:  # for what an earlier, interrupted pull left
            origins = [Origin(bucket if info in missing else files, info) for info in weights]
            self._streamed = stream_weights(self._order, origins, progress, patience, part_of=part_of)
        if self._streamed.part_error is not None:
            raise self._streamed.part_error
        return sums | self._streamed.file_sums


def _from_files(
    pulled: PulledCheckpoint,
    order: WeightOrder,
    weights: Sequence[ObjectInfo],
    progress: Progress,
    cancelled: threading.Event | None,
) -> Loaded[Any]:
    # Whoever pulled the files has summed them, and a folder of this machine is believed.
    objects = [replace(info, crc32c="", size_bytes=_file_size(pulled.path, info)) for info in weights]
    progress.expect(sum(info.size_bytes for info in objects))
    try:
        with FileRanges(order.uri, pulled.path) as files:
            origins = [Origin(files, info) for info in objects]
            streamed = stream_weights(order, origins, progress, Patience(FILE_LIMITS, cancelled))
    except BaseException:
        pulled.release()
        raise
    return Loaded(streamed.weights, pulled.release)


def _file_size(folder: Path, info: ObjectInfo) -> int:
    # An object that is stored with gzip is larger as a file.
    return (folder / info.name).stat().st_size if content.is_packed(info) else info.size_bytes


def _from_levanter(located: LocatedCheckpoint, order: WeightOrder, limits: LoadLimits) -> Loaded[Any]:
    tensors, release = read_levanter(located, limits.cache, limits.progress, limits.cancelled)
    try:
        check_tensors(located.uri, order.specs, {name: tensor.shape for name, tensor in tensors.items()})
        return Loaded(load_weights(order.specs, tensors, order.dtype, mesh=order.mesh), release)
    except BaseException:
        release()
        raise
