"""Weights from safetensors objects straight to the device, while their bytes are still coming.

The headers are read first, so that everything is checked and planned before a byte of a weight is moved. Then the
slices come, in an order that completes weights early, and each is cast into place as soon as it is there.
Nothing is handed out before the sum of every object was right.
"""

import itertools
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from service.errors import MalformedCheckpoint, StorageFull, TransferFailed
from service.models.weight_spec import WeightSpec
from service.storage.fetch import ObjectFetch, fetch_all
from service.storage.objects import ObjectInfo
from service.storage.part_file import PartFile
from service.storage.progress import Progress
from service.storage.retry import Patience
from service.storage.slices import cut
from service.weights.assembly import Assembly
from service.weights.check import check_tensors
from service.weights.header import Header, Origin, read_headers
from service.weights.safetensors import TensorEntry, merged, stored_dtype
from service.weights.staging import Staging
from service.weights.tensor_consumer import TensorConsumer, extents

if TYPE_CHECKING:
    import jax

    from service.device.mesh import DeviceMesh

logger = logging.getLogger(__name__)

# So many slices for each worker, if that makes them no smaller than this: the last ones should end together.
SLICES_PER_WORKER = 4
MIN_SLICE_BYTES = 2 * 1024 * 1024


@dataclass(frozen=True)
class WeightOrder:
    """What to make of a checkpoint."""

    uri: str
    specs: tuple[WeightSpec, ...]
    dtype: np.dtype
    mesh: "DeviceMesh | None"  # weights are split over it by the names of their axes; None: they stay on the host
    max_staging_bytes: int  # of the host's memory, beside the weights where they stay


@dataclass
class StreamedWeights:
    """Weights whose every byte was right, and what became of the files beside."""

    weights: "dict[str, np.ndarray | jax.Array]"
    file_sums: dict[str, str]  # of the files that were put in place, by name
    part_error: StorageFull | TransferFailed | None = None  # why one could not be written


def stream_weights(
    order: WeightOrder,
    origins: Sequence[Origin],
    progress: Progress,
    patience: Patience,
    *,
    part_of: Callable[[ObjectInfo], PartFile | None] = lambda info: None,
) -> StreamedWeights:
    """Make every weight, and place it if there is where.

    Args:
        order: what to make.
        origins: the objects that hold the tensors.
        progress: told what comes; the caller has told it what to expect.
        patience: how long and how often.
        part_of: makes the file that an object is also written to, if it is. A disk that fails costs the file alone.

    Raises:
        MalformedCheckpoint: a header lies, or the tensors are not those of the model; no byte of a weight was moved.
        CorruptObject: an object's sum was wrong twice.
        ObjectChanged: an object was overwritten or deleted since it was listed.
        TransferFailed: retries or deadline ran out.
    """
    streaming = _Streaming(order, progress, patience, part_of)
    plan = _plan(order, origins, patience)
    names = {header.origin.info.name for header in plan.headers}
    wrong = streaming.run(plan, order.specs, names, names)
    if wrong:
        # A wrong sum is rare enough to begin again with; a second one is no accident of the network.
        logger.warning("bytes came wrong and are fetched again", extra={"objects": sorted(wrong)})
        again = _plan(order, origins, patience)
        is_same_plan = [header.data for header in again.headers] == [header.data for header in plan.headers]
        specs = [
            spec for spec in order.specs if not is_same_plan or not wrong.keys().isdisjoint(again.objects_of([spec]))
        ]
        for fetch in streaming.run(again, specs, wrong.keys() | again.objects_of(specs), set(wrong)).values():
            fetch.check(order.uri)
    return streaming.result(order.specs)


@dataclass(frozen=True)
class _Plan:
    headers: Sequence[Header]
    entries: Mapping[str, Mapping[str, TensorEntry]]  # by object, then by tensor

    def objects_of(self, specs: Iterable[WeightSpec]) -> set[str]:
        """Return the objects that hold a part of these weights."""
        names = {source.name for spec in specs for source in spec.sources}
        return {name for name, entries in self.entries.items() if not names.isdisjoint(entries)}


class _Streaming:
    """The weights and files that are there so far."""

    def __init__(
        self,
        order: WeightOrder,
        progress: Progress,
        patience: Patience,
        part_of: Callable[[ObjectInfo], PartFile | None],
    ) -> None:
        self._order, self._progress, self._patience, self._part_of = order, progress, patience, part_of
        self._weights: dict[str, np.ndarray | jax.Array] = {}
        self._file_sums: dict[str, str] = {}
        self._part_error: StorageFull | TransferFailed | None = None

    def run(
        self, plan: _Plan, specs: Sequence[WeightSpec], objects: Set[str], filed: Set[str]
    ) -> dict[str, ObjectFetch]:
        """Make weights anew out of these objects; return what came wrong, by name."""
        for spec in specs:
            self._weights.pop(spec.name, None)  # its memory is needed
        # The rest of the bound is for the pieces that are on their way.
        limits = self._patience.limits
        buffer_bytes = limits.num_workers * limits.piece_bytes
        staging = Staging(max(0, self._order.max_staging_bytes - buffer_bytes))
        order = self._order
        assembly = Assembly(specs, order.dtype, order.mesh, on_placed=staging.give_back)
        headers = [header for header in plan.headers if header.origin.info.name in objects]
        slice_bytes = self._slice_bytes(headers)
        fetches = {}
        for header in headers:
            info, entries = header.origin.info, plan.entries[header.origin.info.name]
            fetches[info.name] = ObjectFetch(
                header.origin.source,
                info,
                cut(len(header.data), extents(entries), piece_bytes=limits.piece_bytes, slice_bytes=slice_bytes),
                self._progress,
                head=header.data,
                part=self._part_of(info) if info.name in filed else None,
                consumer=TensorConsumer(self._order.uri, entries, assembly, staging),
            )
        fetch_all(_in_order_of_use(specs, plan, fetches), self._patience)
        self._weights |= assembly.weights()
        for name, fetch in fetches.items():
            self._part_error = self._part_error or fetch.part_error
            if fetch.file_sum is not None:
                self._file_sums[name] = fetch.file_sum
        return {name: fetch for name, fetch in fetches.items() if not fetch.is_right}

    def result(self, specs: Iterable[WeightSpec]) -> StreamedWeights:
        """Hand out everything."""
        weights = {spec.name: self._weights[spec.name] for spec in specs}
        return StreamedWeights(weights, self._file_sums, self._part_error)

    def _slice_bytes(self, headers: Sequence[Header]) -> int:
        limits = self._patience.limits
        total_bytes = sum(header.origin.info.size_bytes for header in headers)
        fair_bytes = max(total_bytes // (limits.num_workers * SLICES_PER_WORKER), MIN_SLICE_BYTES)
        return min(limits.slice_bytes, fair_bytes)


def _in_order_of_use(
    specs: Sequence[WeightSpec], plan: _Plan, fetches: Mapping[str, ObjectFetch]
) -> list[tuple[ObjectFetch, int]]:
    """Return every slice once: those of one weight behind those of another, weights in the order of storage."""
    places = {
        name: (number, object_name, entry)
        for number, object_name in enumerate(fetches)
        for name, entry in plan.entries[object_name].items()
    }
    by_place = sorted(specs, key=lambda spec: min((places[s.name][0], places[s.name][2].begin) for s in spec.sources))
    turns: dict[tuple[str, int], None] = {}
    for source in itertools.chain.from_iterable(spec.sources for spec in by_place):
        _, name, entry = places[source.name]
        slices = fetches[name].slices
        first = bisect_right(slices, entry.begin, key=lambda piece: piece.start) - 1
        for index in range(max(first, 0), len(slices)):
            if slices[index].start >= entry.end:
                break
            turns[name, index] = None
    # What is no weight's counts for the sums, and for the files beside.
    turns |= dict.fromkeys((name, index) for name, fetch in fetches.items() for index in range(len(fetch.slices)))
    return [(fetches[name], index) for name, index in turns]


def _plan(order: WeightOrder, origins: Sequence[Origin], patience: Patience) -> _Plan:
    try:
        return _plan_once(order, origins, patience)
    except MalformedCheckpoint as error:
        # No sum covers a header before the whole object is here, and one wrong bit can make a good one a bad one.
        logger.warning("a header is wrong; the headers are read again", extra={"reason": str(error)})
        return _plan_once(order, origins, patience)


def _plan_once(order: WeightOrder, origins: Sequence[Origin], patience: Patience) -> _Plan:
    headers = read_headers(origins, patience)
    entries = {header.origin.info.name: header.entries() for header in headers}
    tensors = merged(order.uri, entries.values())
    check_tensors(order.uri, order.specs, {name: entry.shape for name, entry in tensors.items()})
    for source in itertools.chain.from_iterable(spec.sources for spec in order.specs):
        stored_dtype(order.uri, source.name, tensors[source.name])
    return _Plan(headers, entries)
