"""Weights of unloaded models in the host's memory: an accelerator has them back by one copy, without reading a file.

Weights never change. So the copy of a model that was loaded from it stays, and unloading that model again copies
nothing. Copies of models that are loaded make room first, since unloading makes them anew.
"""

import logging
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from service.models.weight_spec import WeightSpec

if TYPE_CHECKING:
    import jax

    from service.device.mesh import DeviceMesh

logger = logging.getLogger(__name__)


@dataclass
class _Copy:
    weights: Mapping[str, np.ndarray]
    is_loaded: bool = False  # its model is on the device

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.weights.values())


class HostCache:
    """Copies of weights within a bound of bytes; safe to use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        """Hold nothing; a bound of 0 keeps nothing ever."""
        self._max_bytes = max_bytes
        self._copies: dict[str, _Copy] = {}  # the one that was used last comes last
        self._lock = threading.Lock()  # held while a copy is made, so that two share no bandwidth
        self.num_bytes = 0  # of all copies; read by other threads without the lock

    def place(self, key: str, specs: Sequence[WeightSpec], mesh: "DeviceMesh") -> "dict[str, jax.Array] | None":
        """Copy a model's weights to the device; None if there is no copy of them.

        Args:
            key: of the model, its checkpoint's version included.
            specs: the weights.
            mesh: where they are placed, by the names of their axes.
        """
        with self._lock:
            copy = self._copies.pop(key, None)
            if copy is None:
                return None
            self._copies[key] = copy
            copy.is_loaded = True
        placed = {spec.name: mesh.put(copy.weights[spec.name], spec.axes) for spec in specs}
        return {name: array.block_until_ready() for name, array in placed.items()}

    def keep(self, key: str, weights: "Mapping[str, jax.Array]") -> None:
        """Copy the weights of a model that is being unloaded, unless the copy that it was loaded from is still there.

        What was used least recently makes room. A model larger than the bound is not kept, and the log says so.
        """
        if not self._max_bytes:
            return
        with self._lock:
            copy = self._copies.pop(key, None)
            if copy is not None:
                copy.is_loaded = False
                self._copies[key] = copy
                return
            # A start that imports little gives jax's arrays no `nbytes`.
            num_bytes = sum(math.prod(array.shape) * array.dtype.itemsize for array in weights.values())
            if num_bytes > self._max_bytes:
                facts = {"weights_bytes": num_bytes, "host_cache_bytes": self._max_bytes}
                logger.warning("weights are larger than HOST_CACHE_BYTES and are not kept", extra=facts)
                return
            for other in sorted(self._copies, key=lambda other: not self._copies[other].is_loaded):
                if self.num_bytes + num_bytes > self._max_bytes:
                    self.num_bytes -= self._copies.pop(other).num_bytes
            self._copies[key] = _Copy({name: np.asarray(array) for name, array in weights.items()})
            self.num_bytes += num_bytes
