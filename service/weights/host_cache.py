"""An LRU cache of unloaded models' weights in host memory, so that reloading one is a copy instead of a file read.

Weights never change, so a model loaded from the cache keeps its copy, and unloading it again copies nothing. Copies of
loaded models are evicted first, since unloading the model would recreate them.
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
    is_loaded: bool = False  # whether its model is on the device

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.weights.values())


class HostCache:
    """Copies of weights within a size limit; safe to use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        """Create an empty cache; a limit of 0 disables it."""
        self._max_bytes = max_bytes
        self._copies: dict[str, _Copy] = {}  # least recently used first
        self._lock = threading.Lock()  # held during a copy, so that no two compete for bandwidth
        self.num_bytes = 0  # of all copies; read by other threads without the lock

    def place(self, key: str, specs: Sequence[WeightSpec], mesh: "DeviceMesh") -> "dict[str, jax.Array] | None":
        """Copy a model's weights to the device, or return None if they are not cached.

        Args:
            key: identifies the model and the version of its checkpoint.
            specs: the weights.
            mesh: the devices to place them on, by the names of their axes.
        """
        with self._lock:
            copy = self._copies.pop(key, None)
            if copy is None:
                return None
            self._copies[key] = copy
            copy.is_loaded = True
        placed = {spec.name: mesh.put(copy.weights[spec.name], spec.axes) for spec in specs}
        return {name: array.block_until_ready() for name, array in placed.items()}

    def store(self, key: str, weights: "Mapping[str, jax.Array]") -> None:
        """Copy the weights of a model that is being unloaded, unless they are still cached.

        Evicts the least recently used copies. A model larger than the limit is logged and not cached.
        """
        if not self._max_bytes:
            return
        with self._lock:
            copy = self._copies.pop(key, None)
            if copy is not None:
                copy.is_loaded = False
                self._copies[key] = copy
                return
            # `nbytes` is missing if jax was only partially imported.
            num_bytes = sum(math.prod(array.shape) * array.dtype.itemsize for array in weights.values())
            if num_bytes > self._max_bytes:
                facts = {"weights_bytes": num_bytes, "host_cache_bytes": self._max_bytes}
                logger.warning("weights are larger than HOST_CACHE_BYTES and are not cached", extra=facts)
                return
            for other in sorted(self._copies, key=lambda other: not self._copies[other].is_loaded):
                if self.num_bytes + num_bytes > self._max_bytes:
                    self.num_bytes -= self._copies.pop(other).num_bytes
            self._copies[key] = _Copy({name: np.asarray(array) for name, array in weights.items()})
            self.num_bytes += num_bytes
