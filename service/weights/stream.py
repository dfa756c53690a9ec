"""Streaming of weights from the objects of a checkpoint to the device while their bytes are still arriving.

Headers are read and validated first. Slices are then fetched in an order that completes weights early, and each chunk
is cast into its weights immediately. Weights that wait for the device stay within a limit of host memory. No weights
are returned before the checksum of every object has been verified.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from service.errors import MalformedCheckpoint, StorageFull, TransferFailed
from service.models.weight_spec import WeightSpec
from service.storage.fetch import FetchTask, ObjectFetch, fetch_all
from service.storage.files import PartFile
from service.storage.objects import divide
from service.storage.open_files import OpenFiles
from service.storage.retry import TransferLimits
from service.weights.assembly import Assembly
from service.weights.consumer import TensorConsumer
from service.weights.copies import CopySums, Sums, check_copies
from service.weights.headers import TensorCopy, entries_of, max_tensors, read_headers, stored_tensors
from service.weights.low_rank import Update
from service.weights.names import Resolution, shown
from service.weights.packed.layers import PackedWeights
from service.weights.safetensors import Header, TensorEntry
from service.weights.staging import StagingMemory, staging_bytes

if TYPE_CHECKING:
    import jax

    from service.device.mesh import DeviceMesh

logger = logging.getLogger(__name__)

type Entries = Mapping[str, Mapping[str, TensorEntry]]  # by object and tensor

# Enough slices per worker that the last ones end together, unless that makes them too small.
SLICES_PER_WORKER = 4
MIN_SLICE_BYTES = 2 * 1024 * 1024


@dataclass
class StreamedWeights:
    """Verified weights, and the copies of their files."""

    weights: "dict[str, np.ndarray | jax.Array]" = field(default_factory=dict)
    file_sums: dict[str, str] = field(default_factory=dict)  # crc32c of each committed copy, by name
    sums: Sums = field(default_factory=dict)  # of tensors that are there twice
    disk_fault: StorageFull | TransferFailed | None = None  # why a copy could not be written


def stream_weights(
    specs: Sequence[WeightSpec],
    opened: OpenFiles,
    *,
    mesh: "DeviceMesh | None" = None,
    updates: Mapping[str, Update] = MappingProxyType({}),
    max_staging_bytes: int | None,
) -> StreamedWeights:
    """Load all weights, and place them if there is a mesh; a failing disk loses only the copies.

    Args:
        specs: the weights.
        opened: the objects that contain the tensors.
        mesh: shards weights by the names of their axes; None leaves them on the host.
        updates: what is added to tensors, by name.
        max_staging_bytes: of host memory, in addition to weights that stay there; None for a default by their sizes.

    Raises:
        MalformedCheckpoint: a header is invalid, or its tensors do not match the model; no weights were read.
        CorruptObject: an object's checksum did not match twice.
        ObjectChanged: an object was overwritten or deleted since it was listed.
        TransferFailed: retries or the deadline ran out.
        UnquantizableWeights: 8 bits cannot represent a row of a weight.
    """
    streamed, limits = StreamedWeights(), opened.budget.limits
    # The workers' buffers count toward the limit.
    most_bytes = staging_bytes(max_staging_bytes, max((spec.num_bytes for spec in specs), default=0))
    most_bytes = max(0, most_bytes - limits.num_workers * limits.chunk_bytes)
    missing, corrupt, known = specs, set[str](), None
    # A checksum mismatch is rare enough to start over; a second one is no accident of the network.
    for is_last_try in (False, True):
        try:
            headers = read_headers(opened.files, opened.budget, max_tensors(specs))
            found = entries_of(specs, headers)
        except MalformedCheckpoint as error:
            # A header is verified only once the whole object has arrived, so the error may come from a flipped bit.
            logger.warning("invalid header; reading the headers again", extra={"reason": str(error)})
            headers = read_headers(opened.files, opened.budget, max_tensors(specs))
            found = entries_of(specs, headers)
        entries = found.entries
        if is_last_try:
            if entries == known:
                missing = [spec for spec in specs if not corrupt.isdisjoint(_files_of([spec], entries))]
            needed = corrupt | _files_of(missing, entries) | {copy.copy_file for copy in found.copies}
            entries = {file: own for file, own in entries.items() if file in needed}
        for spec in missing:
            streamed.weights.pop(spec.name, None)  # its memory is needed
        memory = StagingMemory(most_bytes)
        with memory.pinned_for(mesh):
            assembly = Assembly(missing, mesh, updates, on_placed=memory.release)
            fetches = _stream(assembly, entries, headers, found.copies, memory=memory, streamed=streamed, opened=opened)
        corrupt, known = {name for name, fetch in fetches.items() if not fetch.is_valid}, entries
        if not corrupt:
            break
        if is_last_try:
            fetches[min(corrupt)].check()
        del assembly, fetches  # they refer to weights
        logger.warning("checksum mismatch; fetching again", extra={"objects": sorted(corrupt)})
    check_copies(opened.files[0].source.uri, found.copies, streamed.sums)
    _log(opened.files[0].source.uri, found.resolution)
    streamed.weights = {spec.name: streamed.weights[spec.name] for spec in specs}
    return streamed


def _log(uri: str, resolution: Resolution) -> None:
    """Say once which tensors of a checkpoint are not served."""
    if resolution.left_out:
        left_out = {what: shown(names) for what, names in resolution.left_out.items()}
        logger.info("left out tensors that change no result", extra={"uri": uri, "left_out": left_out})
    if resolution.copies:
        logger.info("equal copies of tensors are read once", extra={"uri": uri, "copies": len(resolution.copies)})


def _files_of(specs: Iterable[WeightSpec], entries: Entries) -> set[str]:
    """Return the names of the objects that contain tensors of these weights."""
    tensors = {tensor.name for tensor in stored_tensors(specs)}
    return {
        file
        for file, own in entries.items()
        if not tensors.isdisjoint(entry.place_in(name)[0] for name, entry in own.items())
    }


def _stream(
    assembly: Assembly,
    entries: Entries,
    headers: Sequence[Header],
    copies: Sequence[TensorCopy],
    *,
    memory: StagingMemory,
    streamed: StreamedWeights,
    opened: OpenFiles,
) -> dict[str, ObjectFetch]:
    """Load the weights of these objects into `streamed`; return the fetches by the names of their objects."""
    packed = PackedWeights(assembly, memory.release)
    limits = opened.budget.limits
    slice_bytes = _slice_bytes(headers, limits)
    fetches, sums = {}, {}
    for header in headers:
        file, info = header.file, header.file.info
        if info.name not in entries:
            continue
        sums[info.name] = CopySums(info.name, copies)
        copy_to = None if streamed.disk_fault or info.name in streamed.file_sums else file.copy_to
        fetches[info.name] = ObjectFetch(
            file.source,
            info,
            divide(len(header.data), header.extents, chunk_bytes=limits.chunk_bytes, slice_bytes=slice_bytes),
            opened.progress,
            head=header.data,
            file=None if copy_to is None else PartFile(file.source.uri, info, copy_to),
            consumer=TensorConsumer(
                file.source.uri, entries[info.name], assembly, packed, memory, sums=sums[info.name]
            ),
        )
    fetch_all(_schedule(assembly.specs, entries, fetches), opened.budget)
    valid = {tensor for name, fetch in fetches.items() if fetch.is_valid for tensor in entries[name]}
    assembly.check(headers[0].file.source.uri, valid)
    streamed.weights |= assembly.weights()
    for name, fetch in fetches.items():
        if fetch.is_valid:
            streamed.sums |= sums[name].sums()
        streamed.disk_fault = streamed.disk_fault or fetch.disk_fault
        if fetch.file_sum is not None:
            streamed.file_sums[name] = fetch.file_sum
    return fetches


def _slice_bytes(headers: Sequence[Header], limits: TransferLimits) -> int:
    total_bytes = sum(header.file.info.size_bytes for header in headers)
    fair_bytes = max(total_bytes // (limits.num_workers * SLICES_PER_WORKER), MIN_SLICE_BYTES)
    return min(limits.slice_bytes, fair_bytes)


def _schedule(specs: Sequence[WeightSpec], entries: Entries, fetches: Mapping[str, ObjectFetch]) -> list[FetchTask]:
    """Return every slice once, grouped by weight, weights in storage order."""
    stored = {
        tensor: (number, entry, fetch)
        for number, (name, fetch) in enumerate(fetches.items())
        for tensor, entry in entries[name].items()
    }
    by_storage = sorted(
        specs, key=lambda spec: min((stored[t.name][0], stored[t.name][1].begin) for t in stored_tensors([spec]))
    )
    tasks: dict[FetchTask, None] = {}
    for tensor in stored_tensors(by_storage):
        _, entry, fetch = stored[tensor.name]
        first = bisect_right(fetch.slices, entry.begin, key=lambda part: part.start) - 1
        for index in range(max(first, 0), len(fetch.slices)):
            if fetch.slices[index].start >= entry.end:
                break
            tasks[FetchTask(fetch, index)] = None
    # Bytes outside of weights are needed for checksums and copies.
    tasks |= dict.fromkeys(FetchTask(fetch, index) for fetch in fetches.values() for index in range(len(fetch.slices)))
    return list(tasks)
