"""From the bytes of one safetensors object, slice by slice, to the weights that its tensors are part of."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import takewhile

import numpy as np

from service.storage.retry import Patience
from service.storage.slices import Extent, Piece, Slice
from service.weights.assembly import Assembly
from service.weights.safetensors import DTYPES, TensorEntry
from service.weights.staging import Staging


class TensorConsumer:
    """Writes the tensors of one object into the weights that are being assembled."""

    def __init__(self, uri: str, entries: Mapping[str, TensorEntry], assembly: Assembly, staging: Staging) -> None:
        """Take the object's entries; those that no weight is made of are passed over."""
        # An empty tensor has no bytes to wait for, and lies where another one begins.
        named = [(name, entry) for name, entry in entries.items() if entry.end > entry.begin]
        self._tensors = sorted(named, key=lambda item: item[1].begin)
        self._ends = [entry.end for _, entry in self._tensors]
        self._uri, self._assembly, self._staging = uri, assembly, staging

    @contextmanager
    def admitted(self, part: Slice, patience: Patience) -> Iterator[None]:
        """Wait until there is room for the weights that a slice begins."""
        num_bytes = self._assembly.opening_bytes([name for name, _ in self._inside(part)])
        with self._staging.admitted(num_bytes, lambda: patience.check(self._uri, "weights")):
            yield

    def take(self, piece: Piece, data: np.ndarray) -> None:
        """Write a piece's elements to where they belong."""
        for name, entry in self._inside(piece):
            dtype = DTYPES.get(entry.dtype_name)
            if dtype is None:  # no weight is made of it, or it would have been refused
                continue
            begin, end = max(piece.start, entry.begin), min(piece.end, entry.end)
            values = data[begin - piece.start : end - piece.start]
            self._assembly.write(name, (begin - entry.begin) // dtype.itemsize, _elements(values, dtype))

    def _inside(self, piece: Slice | Piece) -> Iterator[tuple[str, TensorEntry]]:
        first = bisect_right(self._ends, piece.start)
        return takewhile(lambda item: item[1].begin < piece.end, iter(self._tensors[first:]))


def extents(entries: Mapping[str, TensorEntry]) -> list[Extent]:
    """Return how an object's tensors may be divided: between elements."""
    result = []
    for entry in sorted(entries.values(), key=lambda entry: (entry.begin, entry.end)):
        dtype = DTYPES.get(entry.dtype_name)
        unit_bytes = dtype.itemsize if dtype is not None else 1
        result.append(Extent(entry.end - entry.begin, unit_bytes))
    return result


def _elements(data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    # A file may begin its tensors at any byte; numpy is slow on elements that lie across words.
    is_aligned = data.ctypes.data % dtype.itemsize == 0
    return (data if is_aligned else data.copy()).view(dtype)
