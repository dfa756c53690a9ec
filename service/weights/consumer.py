"""A `ChunkConsumer` that maps the bytes of one object to elements of its tensors and writes them to weights.

Bytes that a weight stores unchanged are read directly into its memory; others are read into a scratch buffer and cast.
"""

import functools
import itertools
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import pairwise

import numpy as np

from service.storage.objects import Chunk, Slice
from service.storage.retry import RetryBudget
from service.weights.assembly import Assembly
from service.weights.copies import CopySums
from service.weights.packed.layers import PackedWeights
from service.weights.safetensors import DTYPES, TensorEntry
from service.weights.staging import StagingMemory
from service.weights.strided import StridedTensors, in_order


class TensorConsumer:
    """Writes the tensors of one object into an `Assembly`."""

    def __init__(
        self,
        uri: str,
        entries: Mapping[str, TensorEntry],
        assembly: Assembly,
        packed: PackedWeights,
        memory: StagingMemory,
        *,
        sums: CopySums | None = None,
    ) -> None:
        """Index the tensors of the object that weights use, and those that are compared with one of them."""
        self._packed, self._sums = packed, sums or CopySums("", ())
        # An empty tensor has no bytes to wait for, and shares its offset with the next one.
        used = {
            name: entry
            for name, entry in entries.items()
            if entry.end > entry.begin
            and (assembly.uses(entry.place_in(name)[0]) or name in packed or name in self._sums)
            and entry.dtype_name in DTYPES
        }
        self._tensors = sorted(used.items(), key=lambda item: item[1].begin)
        # Tensors may share bytes, so these are running maxima of the end offsets.
        self._ends = list(itertools.accumulate((entry.end for _, entry in self._tensors), max))
        self._strided = StridedTensors({name: e for name, e in used.items() if assembly.uses(name) or name in packed})
        self._uri, self._assembly, self._memory = uri, assembly, memory

    def reserve(self, part: Slice, budget: RetryBudget) -> AbstractContextManager[None]:
        """Allocate the weights that a slice contributes to, waiting for host memory within the budget."""
        inside = list(self._inside(part))
        names = [entry.place_in(name)[0] for name, entry in inside]
        if not (self._assembly.lacks(names) or self._strided.lacks(names) or self._packed.lacks(names)):
            return self._memory.at_work(None)
        allocate = functools.partial(self._memory.allocate, check=lambda: budget.check(self._uri, "weights"))

        def obtain() -> None:
            self._assembly.reserve(names, allocate)
            self._strided.reserve(names, allocate)
            self._packed.reserve(inside, allocate)

        return self._memory.at_work(obtain)

    def pieces(self, chunk: Chunk, buffer: np.ndarray) -> Iterator[tuple[Chunk, np.ndarray]]:
        """Split a chunk by destination: directly into a weight, or into the scratch buffer."""
        position = chunk.start
        inside = list(self._inside(chunk))
        is_shared = any(before.end > after.begin for (_, before), (_, after) in pairwise(inside))
        for name, entry in () if is_shared else inside:
            part = Chunk(max(chunk.start, entry.begin), min(chunk.end, entry.end))
            if (place := self._place(name, entry, part)) is not None:
                if position < part.start:
                    yield Chunk(position, part.start), buffer[: part.start - position]
                yield part, place
                position = part.end
        if position < chunk.end:
            yield Chunk(position, chunk.end), buffer[: chunk.end - position]

    def _place(self, name: str, entry: TensorEntry, part: Chunk) -> np.ndarray | None:
        tensor, place = entry.place_in(name)
        if name in self._packed or name in self._strided or not self._assembly.uses(tensor):
            return None
        dtype = DTYPES[entry.dtype_name]
        first = place + (part.start - entry.begin) // dtype.itemsize
        return self._assembly.place(tensor, first, part.num_bytes // dtype.itemsize, dtype)

    def consume(self, piece: Chunk, data: np.ndarray) -> None:
        """Write a piece's elements to their weights; `data` is uint8 of shape [piece.num_bytes]."""
        for name, entry in self._inside(piece):
            dtype = DTYPES[entry.dtype_name]
            begin, end = max(piece.start, entry.begin), min(piece.end, entry.end)
            values = data[begin - piece.start : end - piece.start]
            if name in self._sums:
                self._sums.add(name, begin - entry.begin, values)
                if not self._assembly.uses(name) and name not in self._packed:
                    continue
            writer = self._packed if name in self._packed else self._assembly
            if name not in self._strided:
                tensor, place = entry.place_in(name)
                writer.write(tensor, place + (begin - entry.begin) // dtype.itemsize, _elements(values, dtype))
            elif (collected := self._strided.write(name, begin - entry.begin, values)) is not None:
                writer.write(name, 0, in_order(entry, collected, dtype))
                self._memory.release(collected)

    def _inside(self, part: Slice | Chunk) -> Iterator[tuple[str, TensorEntry]]:
        first = bisect_right(self._ends, part.start)
        before_end = itertools.takewhile(lambda item: item[1].begin < part.end, iter(self._tensors[first:]))
        return (item for item in before_end if item[1].end > part.start)


def _elements(data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    # Tensors may start at any byte of a file; numpy is slow on unaligned elements.
    is_aligned = data.ctypes.data % dtype.itemsize == 0
    return (data if is_aligned else data.copy()).view(dtype)
