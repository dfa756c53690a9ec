"""The packed weights of a checkpoint: their tensors are collected as they arrive, from any files and in any order.

A weight's tensors take a half to an eighth of its bytes in float32, and are kept until the last of them is there. Then
the weight is unpacked, some rows at a time, and written as if a checkpoint that is not quantized held it.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from service.errors import UnquantizableWeights
from service.models.stored.layers import StoredTensor
from service.models.weight_spec import TensorSource, WeightSpec
from service.weights.assembly import Assembly
from service.weights.cast import cast_into
from service.weights.packed.unpack import UnreadableWeight, unpacked_rows
from service.weights.safetensors import DTYPES, TensorEntry


@dataclass
class _Weight:
    """One weight under way."""

    source: TensorSource
    num_missing: int  # elements of all its tensors
    collected: dict[str, np.ndarray] = field(default_factory=dict)  # by tensor, of shape [n]
    fault: tuple[str, str] | None = None  # a tensor, and what is wrong with it


class PackedWeights:
    """Those weights of a model that several tensors hold; safe to write to from several threads."""

    def __init__(
        self, specs: Iterable[WeightSpec], assembly: Assembly, give_back: Callable[[int], None] = lambda num_bytes: None
    ) -> None:
        """Begin with nothing.

        Args:
            specs: the weights of the model, packed or not.
            assembly: takes the rows of packed ones.
            give_back: called, from any thread, with bytes of host memory that are free again.
        """
        self._assembly, self._give_back = assembly, give_back
        self._lock = threading.Lock()
        self._weights: dict[str, _Weight] = {}
        self._users: dict[str, tuple[_Weight, StoredTensor]] = {}
        sources = {source.name: source for spec in specs for source in spec.sources if source.packing is not None}
        for name, source in sources.items():
            num_elements = sum(int(np.prod(part.shape)) for part in source.stored)
            weight = self._weights[name] = _Weight(source, num_elements)
            self._users |= {part.name: (weight, part) for part in source.stored}

    def __contains__(self, tensor: str) -> bool:
        return tensor in self._users

    def reserve(self, tensors: Sequence[tuple[str, TensorEntry]]) -> int:
        """Allocate memory to collect these tensors, and for their weights; return the bytes that this took."""
        taken_bytes = 0
        for name, entry in tensors:
            if name not in self._users:
                continue
            weight, part = self._users[name]
            with self._lock:
                if name not in weight.collected and weight.num_missing:
                    weight.collected[name] = np.empty(int(np.prod(part.shape)), DTYPES[entry.dtype_name])
                    taken_bytes += weight.collected[name].nbytes
            taken_bytes += self._assembly.reserve([weight.source.name])
        return taken_bytes

    def write(self, tensor: str, first: int, values: np.ndarray) -> None:
        """Write elements of a tensor; the thread that writes the last of a weight's tensors unpacks it.

        Args:
            tensor: the tensor's name.
            first: the number of the first element, in the order of storage.
            values: shape [n], of the stored type; copied.
        """
        weight, _ = self._users[tensor]
        cast_into(weight.collected[tensor][first : first + len(values)], values)
        with self._lock:
            weight.num_missing -= len(values)
            if weight.num_missing:
                return
        self._unpack(weight)

    def check(self, uri: str, tensors: Collection[str]) -> None:
        """Check those weights all of whose tensors came right.

        Raises:
            UnquantizableWeights: one says something impossible, or 8 bits do not represent a row.
        """
        for name, weight in self._weights.items():
            if not all(part.name in tensors for part in weight.source.stored):
                continue
            if weight.fault is not None:
                raise UnquantizableWeights(uri, *weight.fault)
            self._assembly.check(uri, [name])

    def _unpack(self, weight: _Weight) -> None:
        source, collected = weight.source, weight.collected
        assert source.packing is not None, "others are not collected"
        tensors = {part.role: collected[part.name].reshape(part.shape) for part in source.stored}
        first = 0
        try:
            for rows in unpacked_rows(source.packing, source.shape, tensors):
                self._assembly.write(source.name, first, rows.reshape(-1))
                first += rows.size
        except UnreadableWeight as error:
            # Whether the bytes came right is known later, so the load ends later.
            weight.fault = next(part.name for part in source.stored if part.role == error.role), str(error)
            missing = int(np.prod(source.shape)) - first
            self._assembly.write(source.name, first, np.zeros(missing, np.float32))
        weight.collected = {}
        self._give_back(sum(part.nbytes for part in collected.values()))
