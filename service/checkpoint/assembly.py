"""Weights that grow on the host from pieces of tensors, in any order, each placed on the device when it is whole.

Where the device is one CPU device the host's memory is the device's: one piece of memory is taken for all weights, and
placing them in the end copies nothing.
"""

import math
import threading
from collections.abc import Callable, Sequence

import jax
import numpy as np

from service.checkpoint.fresh_memory import ALIGNMENT_BYTES, FreshMemory
from service.checkpoint.turning import TensorPlace
from service.device.mesh import DeviceMesh
from service.models.interface import WeightSpec

# Where the device's memory is the host's.
IN_PLACE_PLATFORM = "cpu"


class Assembly:
    """The weights of one model on their way to the device; safe to write to from several threads."""

    def __init__(
        self,
        specs: Sequence[WeightSpec],
        dtype: np.dtype,
        mesh: DeviceMesh,
        *,
        memory: FreshMemory | None = None,
        on_placed: Callable[[int], None] = lambda num_bytes: None,
    ) -> None:
        """Take the host's memory where it becomes the device's; elsewhere each weight's when its first piece comes.

        Args:
            specs: what to make.
            dtype: what to cast to.
            mesh: where to place the weights, by the names of their axes.
            memory: the host's, if some is being got ready; given back where it does not become the device's.
            on_placed: told, from any thread, how many bytes of the host's memory a weight gave back.
        """
        self._dtype, self._mesh, self._on_placed = dtype, mesh, on_placed
        self._lock = threading.Lock()
        self._specs = {spec.name: spec for spec in specs}
        self._users: dict[str, list[tuple[WeightSpec, int]]] = {}
        for spec in specs:
            for index, source in enumerate(spec.sources):
                self._users.setdefault(source.name, []).append((spec, index))
        self._left = {spec.name: math.prod(spec.shape) for spec in specs}  # elements that have not come
        self._arrays: dict[str, np.ndarray] = {}
        self._placed: dict[str, jax.Array] = {}
        self._is_in_place = mesh.num_devices == 1 and mesh.platform == IN_PLACE_PLATFORM
        if self._is_in_place:
            self._arrays = _side_by_side(specs, dtype, memory or FreshMemory())
        elif memory is not None:
            memory.give_back()

    def opening_bytes(self, tensors: Sequence[str]) -> int:
        """Open the weights that these tensors belong to; return the host's memory that they need until placed."""
        opened = 0
        with self._lock:
            for spec, _ in (user for name in tensors for user in self._users.get(name, ())):
                if spec.name not in self._arrays and self._left[spec.name]:
                    self._arrays[spec.name] = np.empty(spec.shape, self._dtype)
                    opened += self._arrays[spec.name].nbytes
        return opened

    def write(self, tensor: str, first: int, values: np.ndarray) -> None:
        """Take elements of a tensor, the first of them number `first`; whoever brings a weight's last places it."""
        for spec, index in self._users.get(tensor, ()):
            TensorPlace(spec, index, self._arrays[spec.name]).write(first, values)
            with self._lock:
                self._left[spec.name] -= len(values) * spec.sources[index].copies
                is_whole = self._left[spec.name] == 0
            if is_whole and not self._is_in_place:
                self._place(spec.name)

    def weights(self) -> dict[str, jax.Array]:
        """Return the weights, all of which have come, in the order of their specs."""
        if self._is_in_place:
            arrays = [self._arrays[name] for name in self._specs]
            placed = jax.block_until_ready(jax.device_put(arrays, self._mesh.whole, may_alias=True))
            self._placed = dict(zip(self._specs, placed, strict=True))
        return {name: self._placed[name] for name in self._specs}

    def _place(self, name: str) -> None:
        with self._lock:
            array = self._arrays.pop(name)
        # The transfer must be over before the host's memory counts as given back.
        placed = jax.block_until_ready(self._mesh.put(array, self._specs[name].axes))
        with self._lock:
            self._placed[name] = placed
        self._on_placed(array.nbytes)


def _side_by_side(specs: Sequence[WeightSpec], dtype: np.dtype, memory: FreshMemory) -> dict[str, np.ndarray]:
    # One large piece gets huge pages, which cost a third of the faults of many small ones.
    offsets, end = [], 0
    for spec in specs:
        offsets.append(end)
        end += -(-math.prod(spec.shape) * dtype.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    taken = memory.take(end)
    return {
        spec.name: taken[offset : offset + math.prod(spec.shape) * dtype.itemsize].view(dtype).reshape(spec.shape)
        for spec, offset in zip(specs, offsets, strict=True)
    }
