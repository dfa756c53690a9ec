"""Tensors stored with strides, such as transposed views: buffered, then made contiguous."""

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from service.weights.safetensors import TensorEntry


class StridedTensors:
    """The strided tensors of one file; writable from several threads."""

    def __init__(self, entries: Mapping[str, TensorEntry]) -> None:
        self._entries = {name: entry for name, entry in entries.items() if entry.strides is not None}
        self._lock = threading.Lock()
        self._collected: dict[str, np.ndarray] = {}  # uint8 of shape [end - begin]
        self._num_missing = {name: entry.end - entry.begin for name, entry in self._entries.items()}  # bytes

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def lacks(self, names: Iterable[str]) -> bool:
        """Return whether one of these tensors has no buffer yet."""
        with self._lock:
            return bool(self._without_buffer(names))

    def reserve(self, names: Iterable[str], allocate: Callable[[int], np.ndarray]) -> None:
        """Allocate buffers for these tensors; only one thread may reserve at a time."""
        with self._lock:
            missing = self._without_buffer(names)
        for name in missing:
            array = allocate(self._num_missing[name])
            with self._lock:
                self._collected[name] = array

    def _without_buffer(self, names: Iterable[str]) -> list[str]:
        known = self._entries.keys() & set(names)
        return [name for name in known if name not in self._collected and self._num_missing[name]]

    def write(self, name: str, first: int, data: np.ndarray) -> np.ndarray | None:
        """Write bytes of a tensor at byte `first`; return all of them once the last have arrived."""
        self._collected[name][first : first + len(data)] = data
        with self._lock:
            self._num_missing[name] -= len(data)
            return None if self._num_missing[name] else self._collected.pop(name)


def in_order(entry: TensorEntry, data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return a tensor's elements in row-major order, of shape [n]; `data` is uint8 of shape [end - begin]."""
    if entry.strides is None:
        return data.view(dtype)
    strides = [stride * dtype.itemsize for stride in entry.strides]
    # Reading the header has checked that all elements are within bounds.
    view = np.lib.stride_tricks.as_strided(data.view(dtype), entry.shape, strides, writeable=False)
    return np.ascontiguousarray(view).reshape(math.prod(entry.shape))


def transposed_entry(entry: TensorEntry) -> TensorEntry:
    """Return the entry of the same elements, with the tensor's last two axes exchanged."""
    strides = entry.strides or tuple(math.prod(entry.shape[axis + 1 :]) for axis in range(len(entry.shape)))
    order = (*range(len(strides) - 2), len(strides) - 1, len(strides) - 2)
    shape, strides = (tuple(values[axis] for axis in order) for values in (entry.shape, strides))
    return replace(entry, shape=shape, strides=strides)
