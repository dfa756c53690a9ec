"""Tensors whose elements lie out of order in their file, such as a transposed view: collected, then put in order."""

import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from service.weights.safetensors import TensorEntry


class StridedTensors:
    """Some tensors of one file on their way into order; safe to write to from several threads."""

    def __init__(self, entries: Mapping[str, TensorEntry]) -> None:
        """Take the entries of tensors by name; those in order are left to others."""
        self._entries = {name: entry for name, entry in entries.items() if entry.strides is not None}
        self._lock = threading.Lock()
        self._collected: dict[str, np.ndarray] = {}  # uint8 of shape [end - begin]
        self._num_missing = {name: entry.end - entry.begin for name, entry in self._entries.items()}  # bytes

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def reserve(self, names: Iterable[str]) -> int:
        """Allocate memory to collect these tensors; return the bytes that this took."""
        taken_bytes = 0
        with self._lock:
            for name in self._entries.keys() & set(names):
                if name not in self._collected and self._num_missing[name]:
                    num_bytes = self._num_missing[name]
                    self._collected[name] = np.empty(num_bytes, np.uint8)
                    taken_bytes += num_bytes
        return taken_bytes

    def write(self, name: str, first: int, data: np.ndarray) -> np.ndarray | None:
        """Write bytes of a tensor, from byte `first` of it on; return all of them once the last have arrived."""
        self._collected[name][first : first + len(data)] = data
        with self._lock:
            self._num_missing[name] -= len(data)
            return None if self._num_missing[name] else self._collected.pop(name)


def in_order(entry: TensorEntry, data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return a tensor's elements in row-major order, of shape [n]; `data` is uint8 of shape [end - begin]."""
    if entry.strides is None:
        return data.view(dtype)
    strides = [stride * dtype.itemsize for stride in entry.strides]
    # The header's reader has checked that every element lies within the bytes.
    view = np.lib.stride_tricks.as_strided(data.view(dtype), entry.shape, strides, writeable=False)
    return np.ascontiguousarray(view).reshape(math.prod(entry.shape))


def transposed_entry(entry: TensorEntry) -> TensorEntry:
    """Return the entry of the same elements, with the tensor's two axes exchanged."""
    rows, columns = entry.shape
    row_stride, column_stride = entry.strides or (columns, 1)
    return replace(entry, shape=(columns, rows), strides=(column_stride, row_stride))
