"""The devices of one host that run every step together, and the sharding of arrays over them.

Sharding follows the names of an array's axes: a table lists the axes that are sharded. Other axes, and axes whose size
is not divisible by the number of devices (a vocabulary of 49,153), are replicated.

Only this file assumes a single host: it chooses the devices, and arrays are created from each host's own part
(`DeviceMesh.put`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from service.device.memory import Device
from service.errors import SettingsError

MODEL_AXIS = "model"  # the only axis of the mesh
# Axis of an array to axis of the mesh. Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
# `heads` is the concatenation of all query heads, grouped by key-value head, or of all heads of a recurrent layer,
# grouped by key head.
MESH_AXES = {
    **{"kv_head": MODEL_AXIS, "heads": MODEL_AXIS, "mlp": MODEL_AXIS, "vocab": MODEL_AXIS},
    **{"key_head": MODEL_AXIS, "state_channel": MODEL_AXIS},
}


@dataclass(frozen=True)
class DeviceMesh:
    """A one-dimensional mesh of devices."""

    devices: tuple[Device, ...]

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    @property
    def platform(self) -> str:
        """The platform of the devices: `cpu`, `gpu` or `tpu`."""
        return self.devices[0].platform

    @property
    def is_host(self) -> bool:
        """Whether the mesh is a single device whose memory is the host's."""
        return self.num_devices == 1 and self.platform == "cpu"

    @property
    def prefers_whole_steps(self) -> bool:
        """Whether a step is faster as a single program than in parts, as on a GPU.

        XLA records a program's kernels as a CUDA graph, and updates it where an address differs from the previous call.
        Parts that share an executable have different addresses at each call.
        Source: https://github.com/openxla/xla/blob/main/xla/backends/gpu/runtime/command_buffer_thunk.cc
        """
        return self.platform == "gpu"

    @property
    def key_inputs(self) -> dict[str, Any]:
        """The properties of the mesh that executables depend on, as plain JSON."""
        return {"shape": {MODEL_AXIS: self.num_devices}, "device_ids": [device.id for device in self.devices]}

    @cached_property
    def named(self) -> Mesh:
        return Mesh(np.array(self.devices), (MODEL_AXIS,), axis_types=(AxisType.Auto,))

    @cached_property
    def replicated(self) -> Sharding:
        return self._sharding(PartitionSpec())

    def partition(self, axes: Sequence[str], shape: Sequence[int]) -> PartitionSpec:
        """Return the mesh axis for each axis of an array, or None if it is not sharded."""
        return PartitionSpec(
            *(
                MESH_AXES.get(name) if size % self.num_devices == 0 else None
                for name, size in zip(axes, shape, strict=True)
            )
        )

    def sharding(self, axes: Sequence[str], shape: Sequence[int]) -> Sharding:
        return self._sharding(self.partition(axes, shape))

    def shard_shape(self, axes: Sequence[str], shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of one device's part of an array."""
        partition = self.partition(axes, shape)
        return tuple(
            size if axis is None else size // self.num_devices for axis, size in zip(partition, shape, strict=True)
        )

    def constrain(self, array: jax.Array, axes: Sequence[str]) -> jax.Array:
        """Shard an array by the names of its axes, inside a traced function."""
        if self.num_devices == 1:
            return array
        return jax.lax.with_sharding_constraint(array, self.sharding(axes, array.shape))

    def gather(self, array: jax.Array) -> jax.Array:
        """Replicate an array, inside a traced function."""
        return array if self.num_devices == 1 else jax.lax.with_sharding_constraint(array, self.replicated)

    def put(self, array: np.ndarray, axes: Sequence[str]) -> jax.Array:
        """Place a host array; each device receives only its own shard."""
        return jax.make_array_from_callback(
            array.shape, self.sharding(axes, array.shape), lambda part: array[part], dtype=array.dtype
        )

    def alias_host_arrays(self, arrays: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Return device arrays that alias host arrays; only unaligned ones are copied.

        Requires `is_host`. The host arrays must not change afterwards.
        """
        placed = jax.block_until_ready(jax.device_put(list(arrays.values()), self.replicated, may_alias=True))
        return dict(zip(arrays, placed, strict=True))

    def _sharding(self, partition: PartitionSpec) -> Sharding:
        # Programs on one device expect the sharding type that a plain `device_put` yields.
        if self.num_devices == 1:
            return SingleDeviceSharding(self.devices[0])  # pyright: ignore[reportArgumentType]
        return NamedSharding(self.named, partition)


def choose_mesh(devices: Sequence[Device], *, tensor_parallel: int | None, sizes: Mapping[str, int]) -> DeviceMesh:
    """Choose how many devices of this host to use.

    By default, that is the largest number that divides all sizes. On a CPU it is one, because CPU devices share the
    same cores.

    Args:
        devices: all devices of this host.
        tensor_parallel: TENSOR_PARALLEL; None for the default.
        sizes: sizes of the model that must be divisible by the number of devices, by their names in its configuration.

    Raises:
        SettingsError: the host has fewer devices, or their number does not divide a size.
    """
    possible = [number for number in range(1, len(devices) + 1) if all(size % number == 0 for size in sizes.values())]
    if tensor_parallel is None:
        return DeviceMesh(tuple(devices[: 1 if devices[0].platform == "cpu" else possible[-1]]))
    if tensor_parallel not in possible:
        named = " and ".join(f"{name} = {size}" for name, size in sizes.items())
        raise SettingsError(
            "TENSOR_PARALLEL",
            f"is {tensor_parallel}. This host has {len(devices)} devices ({devices[0].platform}), and the model's "
            f"{named} must be divisible by the number. Possible values: {', '.join(map(str, possible))}.",
        )
    return DeviceMesh(tuple(devices[:tensor_parallel]))


def split_devices(
    devices: Sequence[Device], *, data_parallel: int, tensor_parallel: int | None
) -> list[Sequence[Device]]:
    """Divide the devices of this host among engines, equally; those that are left over stay idle.

    Args:
        devices: all devices of this host.
        data_parallel: DATA_PARALLEL, the number of engines.
        tensor_parallel: TENSOR_PARALLEL, the devices of each; None for all of its part that it can use.

    Raises:
        SettingsError: the host has fewer devices.
    """
    needed = data_parallel * (tensor_parallel or 1)
    if needed > len(devices):
        each = "" if tensor_parallel is None else f" of TENSOR_PARALLEL={tensor_parallel} devices each"
        raise SettingsError(
            "DATA_PARALLEL",
            f"is {data_parallel} engines{each}, and this host has {len(devices)} devices ({devices[0].platform}). Set "
            f"it to at most {max(len(devices) // (tensor_parallel or 1), 1)}.",
        )
    size = len(devices) // data_parallel
    return [devices[first : first + size] for first in range(0, size * data_parallel, size)]
