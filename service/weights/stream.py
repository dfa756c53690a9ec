"""Streaming of weights from the objects of a checkpoint to the device while their bytes are still arriving.

Headers are read and validated first. Slices are then fetched in an order that completes weights early, and each chunk
is cast into its weights immediately. Weights that wait for the device stay within a limit of host memory. No weights
are returned before the checksum of every object has been verified.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from service.errors import MalformedCheckpoint, StorageFull, TransferFailed
from service.models.stored.layers import StoredTensor
from service.models.weight_spec import WeightSpec
from service.observability.progress import Progress
from service.storage.fetch import FetchTask, ObjectFetch, fetch_all
from service.storage.files import PartFile
from service.storage.objects import divide
from service.storage.open_files import OpenFile
from service.storage.retry import RetryBudget, TransferLimits
from service.weights.assembly import Assembly
from service.weights.consumer import TensorConsumer
from service.weights.headers import read_headers, without_prefix
from service.weights.low_rank import LowRankUpdate
from service.weights.packed.layers import PackedWeights
from service.weights.safetensors import Header, check_dtype, check_tensors, merged
from service.weights.stacked_experts import with_single_experts
from service.weights.staging import StagingMemory
from service.weights.strided import transposed_entry

if TYPE_CHECKING:
    import jax

    from service.device.mesh import DeviceMesh

logger = logging.getLogger(__name__)

# Enough slices per worker that the last ones end together, unless that makes them too small.
SLICES_PER_WORKER = 4
MIN_SLICE_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True)
class WeightTarget:
    """The weights to load, and where to."""

    specs: tuple[WeightSpec, ...]
    mesh: "DeviceMesh | None"  # weights are sharded by the names of their axes; None leaves them on the host
    max_staging_bytes: int  # of host memory, in addition to weights that stay there
    updates: Mapping[str, LowRankUpdate] = field(default_factory=dict)  # added to tensors, by name


@dataclass
class StreamedWeights:
    """Verified weights, and the copies of their files."""

    weights: "dict[str, np.ndarray | jax.Array]" = field(default_factory=dict)
    file_sums: dict[str, str] = field(default_factory=dict)  # crc32c of each committed copy, by name
    disk_fault: StorageFull | TransferFailed | None = None  # why a copy could not be written


def stream_weights(
    target: WeightTarget, files: Sequence[OpenFile], progress: Progress, budget: RetryBudget
) -> StreamedWeights:
    """Load all weights, and place them if there is a mesh; a failing disk loses only the copies.

    Args:
        target: the weights to load.
        files: the objects that contain the tensors.
        progress: counts the bytes, which the caller has added to its total.
        budget: limits time and attempts.

    Raises:
        MalformedCheckpoint: a header is invalid, or its tensors do not match the model; no weights were read.
        CorruptObject: an object's checksum did not match twice.
        ObjectChanged: an object was overwritten or deleted since it was listed.
        TransferFailed: retries or the deadline ran out.
        UnquantizableWeights: 8 bits cannot represent a row of a weight.
    """
    streamed = StreamedWeights()
    headers = _read_checked_headers(target, files, budget)
    corrupt = _stream(target, headers, streamed, progress, budget)
    if corrupt:
        # A checksum mismatch is rare enough to start over; a second one is no accident of the network.
        logger.warning("checksum mismatch; fetching again", extra={"objects": sorted(corrupt)})
        again = _read_checked_headers(target, files, budget)
        are_same = [header.entries for header in again] == [header.entries for header in headers]
        specs = tuple(
            spec for spec in target.specs if not are_same or not corrupt.keys().isdisjoint(_files_of([spec], again))
        )
        needed = corrupt.keys() | _files_of(specs, again)
        again = [header for header in again if header.file.info.name in needed]
        for fetch in _stream(replace(target, specs=specs), again, streamed, progress, budget).values():
            fetch.check()
    streamed.weights = {spec.name: streamed.weights[spec.name] for spec in target.specs}
    return streamed


def _read_checked_headers(target: WeightTarget, files: Sequence[OpenFile], budget: RetryBudget) -> list[Header]:
    try:
        return _read_headers_once(target, files, budget)
    except MalformedCheckpoint as error:
        # A header cannot be verified before the whole object has arrived, so the error may come from a flipped bit.
        logger.warning("invalid header; reading the headers again", extra={"reason": str(error)})
        return _read_headers_once(target, files, budget)


def _read_headers_once(target: WeightTarget, files: Sequence[OpenFile], budget: RetryBudget) -> list[Header]:
    names = [source.name for spec in target.specs for source in spec.sources if source.made_from is None]
    headers = with_single_experts(without_prefix(read_headers(files, budget), names), names)
    uri = files[0].source.uri
    tensors = merged(uri, [header.entries for header in headers])
    check_tensors(uri, target.specs, {name: entry.shape for name, entry in tensors.items()})
    for tensor in _stored(target.specs):
        check_dtype(uri, tensor, tensors[tensor.name])
    transposed = {source.name for spec in target.specs for source in spec.sources if source.is_transposed}
    return [
        replace(
            header,
            entries={n: transposed_entry(e) if n in transposed else e for n, e in header.entries.items()},
        )
        for header in headers
    ]


def _stored(specs: Iterable[WeightSpec]) -> Iterator[StoredTensor]:
    return (tensor for spec in specs for source in spec.sources for tensor in source.stored)


def _files_of(specs: Iterable[WeightSpec], headers: Iterable[Header]) -> set[str]:
    """Return the names of the objects that contain tensors of these weights."""
    tensors = {tensor.name for tensor in _stored(specs)}
    return {header.file.info.name for header in headers if not tensors.isdisjoint(header.entries)}


def _stream(
    target: WeightTarget,
    headers: Sequence[Header],
    streamed: StreamedWeights,
    progress: Progress,
    budget: RetryBudget,
) -> dict[str, ObjectFetch]:
    """Load the weights of these objects into `streamed`; return the fetches of corrupt objects by name."""
    for spec in target.specs:
        streamed.weights.pop(spec.name, None)  # its memory is needed
    limits = budget.limits
    # The workers' buffers count toward the limit.
    memory = StagingMemory(max(0, target.max_staging_bytes - limits.num_workers * limits.chunk_bytes))
    assembly = Assembly(target.specs, target.mesh, target.updates, on_placed=memory.release)
    packed = PackedWeights(target.specs, assembly, memory.release)
    slice_bytes = _slice_bytes(headers, limits)
    fetches = {}
    for header in headers:
        file, info = header.file, header.file.info
        copy_to = None if streamed.disk_fault or info.name in streamed.file_sums else file.copy_to
        fetches[info.name] = ObjectFetch(
            file.source,
            info,
            divide(len(header.data), header.extents, chunk_bytes=limits.chunk_bytes, slice_bytes=slice_bytes),
            progress,
            head=header.data,
            file=None if copy_to is None else PartFile(file.source.uri, info, copy_to),
            consumer=TensorConsumer(header, assembly, packed, memory),
        )
    with memory.pinned_for(target.mesh):
        fetch_all(_schedule(target.specs, headers, fetches), budget)
    valid = [header for header in headers if fetches[header.file.info.name].is_valid]
    for header in valid:
        assembly.check(header.file.source.uri, header.entries)
    packed.check(headers[0].file.source.uri, {name for header in valid for name in header.entries})
    streamed.weights |= assembly.weights()
    for name, fetch in fetches.items():
        streamed.disk_fault = streamed.disk_fault or fetch.disk_fault
        if fetch.file_sum is not None:
            streamed.file_sums[name] = fetch.file_sum
    return {name: fetch for name, fetch in fetches.items() if not fetch.is_valid}


def _slice_bytes(headers: Sequence[Header], limits: TransferLimits) -> int:
    total_bytes = sum(header.file.info.size_bytes for header in headers)
    fair_bytes = max(total_bytes // (limits.num_workers * SLICES_PER_WORKER), MIN_SLICE_BYTES)
    return min(limits.slice_bytes, fair_bytes)


def _schedule(
    specs: Sequence[WeightSpec], headers: Sequence[Header], fetches: Mapping[str, ObjectFetch]
) -> list[FetchTask]:
    """Return every slice once, grouped by weight, weights in storage order."""
    stored = {
        tensor: (number, entry, fetches[header.file.info.name])
        for number, header in enumerate(headers)
        for tensor, entry in header.entries.items()
    }
    by_storage = sorted(
        specs, key=lambda spec: min((stored[t.name][0], stored[t.name][1].begin) for t in _stored([spec]))
    )
    tasks: dict[FetchTask, None] = {}
    for tensor in _stored(by_storage):
        _, entry, fetch = stored[tensor.name]
        first = bisect_right(fetch.slices, entry.begin, key=lambda part: part.start) - 1
        for index in range(max(first, 0), len(fetch.slices)):
            if fetch.slices[index].start >= entry.end:
                break
            tasks[FetchTask(fetch, index)] = None
    # Bytes outside of weights are needed for checksums and copies.
    tasks |= dict.fromkeys(FetchTask(fetch, index) for fetch in fetches.values() for index in range(len(fetch.slices)))
    return list(tasks)
