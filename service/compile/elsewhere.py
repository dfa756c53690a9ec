"""Loading of an executable onto other devices than those that it was compiled for, so that one bundle serves them all.

JAX's public function keeps the devices. A cache of its own moves an executable of one GPU to another as this does.
Source: jax/_src/compilation_cache.py, jax/_src/cache_key.py (the assignment of devices is no part of a GPU's key)
"""

import io
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, override

import jax
from jax._src.compiler import get_compile_options
from jax.experimental.serialize_executable import _JaxPjrtUnpickler as DeviceUnpickler

from service.compile.program import Executable
from service.device.memory import Device
from service.device.native.library import register_native_calls


def load_elsewhere(data: bytes, compiled_for: Sequence[Device], devices: Sequence[Device]) -> Executable:
    """Load an executable onto other devices of the same kind.

    Args:
        data: the serialized executable. The bytes can run any code, so they must come from a trusted source.
        compiled_for: the devices that it was compiled for, in order.
        devices: as many others.
    """
    if devices[0].platform == "cpu":
        register_native_calls()
    (payload, in_tree, out_tree), *leaves = pickle.loads(data)
    moved = dict(zip((device.id for device in compiled_for), devices, strict=True))
    unloaded, args_info, no_kwargs = _Elsewhere(payload, moved).load()
    compiled = jax.stages.Compiled(unloaded.load(), [], in_tree.unflatten(args_info), out_tree, no_kwargs=no_kwargs)
    return Executable(compiled, *leaves)


class _Elsewhere(DeviceUnpickler):
    """Reads the pickle of an executable with each of its devices replaced by another."""

    def __init__(self, payload: bytes, moved: Mapping[int, Device]) -> None:
        """Begin to read.

        Args:
            payload: the pickle.
            moved: the new devices in order, by the ids of the old ones.
        """
        self._devices = list(moved.values())
        super().__init__(io.BytesIO(payload), self._devices[0].client, self._devices)
        self.devices_by_id = moved

    @override
    def persistent_load(self, pid: Any) -> Any:
        if pid[0] != "exec":
            return super().persistent_load(pid)
        assignment = [[device.id for device in self._devices]]
        options = get_compile_options(1, len(self._devices), device_assignment=assignment)
        return self.backend.deserialize_executable(pid[1], self.execution_devices, options)
