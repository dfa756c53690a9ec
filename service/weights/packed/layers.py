"""Collection of the packed weights of a checkpoint, whose tensors arrive from any file and in any order.

A weight's packed tensors take a half to an eighth of its bytes in float32, and are buffered until the last one arrives.
Then the weight is unpacked, some rows at a time, and written as if the checkpoint were not quantized, or as integers of
4 bits with the scales and the zero points of their groups.
"""

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from service.models.quantization import scale_name, zero_name
from service.models.stored.layers import StoredTensor
from service.models.weight_spec import TensorSource
from service.weights.assembly import Assembly
from service.weights.cast import cast_into
from service.weights.packed.unpack import UnreadableWeight, grouped_rows, unpacked_rows
from service.weights.safetensors import DTYPES, TensorEntry


@dataclass
class _Weight:
    """A weight whose packed tensors are arriving."""

    source: TensorSource
    num_missing: int  # elements of all its tensors
    collected: dict[str, np.ndarray] = field(default_factory=dict)  # by tensor, of shape [n]

    @property
    def written(self) -> list[str]:
        """The names under which the assembly gets its parts."""
        name, storage = self.source.name, self.source.packing
        if storage is None or not storage.is_kept:
            return [name]
        return [name, scale_name(name), *([zero_name(name)] if storage.has_zeros else [])]


class PackedWeights:
    """The packed weights of a model; writable from several threads."""

    def __init__(
        self,
        assembly: Assembly,
        release: Callable[[np.ndarray], None] = lambda array: None,
    ) -> None:
        """Index the packed tensors.

        Args:
            assembly: of the weights, packed or not; receives the unpacked rows.
            release: called, from any thread, with each buffer that is no longer used.
        """
        self._assembly, self._release = assembly, release
        self._lock = threading.Lock()
        self._users: dict[str, tuple[_Weight, StoredTensor]] = {}
        sources = {
            source.name: source for spec in assembly.specs for source in spec.sources if source.packing is not None
        }
        for source in sources.values():
            weight = _Weight(source, sum(int(np.prod(part.shape)) for part in source.stored))
            self._users |= {part.name: (weight, part) for part in source.stored}

    def __contains__(self, tensor: str) -> bool:
        return tensor in self._users

    def lacks(self, tensors: Iterable[str]) -> bool:
        """Return whether one of these tensors, or its weight, has no memory yet."""
        with self._lock:
            used = [(name, self._users[name][0]) for name in tensors if name in self._users]
            if any(name not in weight.collected and weight.num_missing for name, weight in used):
                return True
        return self._assembly.lacks([part for _, weight in used for part in weight.written])

    def reserve(self, tensors: Sequence[tuple[str, TensorEntry]], allocate: Callable[[int], np.ndarray]) -> None:
        """Allocate buffers for these tensors, and their weights; only one thread may reserve at a time."""
        for name, entry in tensors:
            if name not in self._users:
                continue
            weight, part = self._users[name]
            if name not in weight.collected and weight.num_missing:
                dtype = DTYPES[entry.dtype_name]
                array = allocate(int(np.prod(part.shape)) * dtype.itemsize).view(dtype)
                with self._lock:
                    weight.collected[name] = array
            self._assembly.reserve(weight.written, allocate)

    def write(self, tensor: str, first: int, values: np.ndarray) -> None:
        """Write elements of a tensor; the thread that completes a weight's last tensor unpacks it.

        Args:
            tensor: the tensor's name.
            first: the index of the first element in storage order.
            values: shape [n], of the stored type; copied.
        """
        weight, _ = self._users[tensor]
        cast_into(weight.collected[tensor][first : first + len(values)], values)
        with self._lock:
            weight.num_missing -= len(values)
            if weight.num_missing:
                return
        self._unpack(weight)

    def _unpack(self, weight: _Weight) -> None:
        source, collected = weight.source, weight.collected
        assert source.packing is not None, "only packed weights are collected"
        tensors = {part.role: collected[part.name].reshape(part.shape) for part in source.stored}
        parts, first = weight.written, [0] * len(weight.written)
        unpacked = grouped_rows if source.packing.is_kept else unpacked_rows
        try:
            for rows in unpacked(source.packing, source.shape, tensors):
                for index, part in enumerate(rows):
                    self._assembly.write(parts[index], first[index], part.reshape(-1))
                    first[index] += part.size
        except UnreadableWeight as error:
            # The checksum is not known yet: if the bytes are corrupt, they are fetched again. See `Assembly.check`.
            tensor = next(part.name for part in source.stored if part.role == error.role)
            self._assembly.add_fault(source.name, tensor, str(error))
            num_elements, num_in = math.prod(source.shape), source.shape[-1]
            for index, part in enumerate(parts):
                size = num_elements if index == 0 else num_elements // source.packing.group_size(num_in)
                self._assembly.write(part, first[index], np.ones(size - first[index], np.float32))
        weight.collected = {}
        for part in collected.values():
            self._release(part)
