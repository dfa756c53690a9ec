"""The devices of one host that run every step together, and which part of an array lies on which of them.

Placement follows the names of an array's axes: one table says which are split over the devices. What has none of them,
or has one whose size does not divide by the number of devices (a vocabulary of 49,153), lies whole on each device.

Only this file says which devices there are: a mesh over several hosts would be chosen here, and arrays are made from
what each host adds to them (`DeviceMesh.put`), so nothing else counts on one host.
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

MODEL_AXIS = "model"  # the one axis of the mesh
# Axis of an array to axis of the mesh. Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
MESH_AXES = {"kv_head": MODEL_AXIS, "mlp": MODEL_AXIS, "vocab": MODEL_AXIS}


@dataclass(frozen=True)
class DeviceMesh:
    """Some devices in a row."""

    devices: tuple[Device, ...]

    @property
    def num_devices(self) -> int:
        """How many devices share each step."""
        return len(self.devices)

    @property
    def platform(self) -> str:
        """What kind of devices they are: `cpu`, `gpu`, `tpu`."""
        return self.devices[0].platform

    @property
    def is_host(self) -> bool:
        """Whether there is one device, whose memory is the host's."""
        return self.num_devices == 1 and self.platform == "cpu"

    @property
    def facts(self) -> dict[str, Any]:
        """What an executable knows of the mesh, as plain JSON."""
        return {"shape": {MODEL_AXIS: self.num_devices}, "device_ids": [device.id for device in self.devices]}

    @cached_property
    def named(self) -> Mesh:
        """The mesh as jax has it."""
        return Mesh(np.array(self.devices), (MODEL_AXIS,), axis_types=(AxisType.Auto,))

    @cached_property
    def whole(self) -> Sharding:
        """Where an array lies of which every device has a copy."""
        return self._sharding(PartitionSpec())

    def partition(self, axes: Sequence[str], shape: Sequence[int]) -> PartitionSpec:
        """Return the mesh's axis for each axis of an array, None for one that is not split."""
        return PartitionSpec(
            *(
                MESH_AXES.get(name) if size % self.num_devices == 0 else None
                for name, size in zip(axes, shape, strict=True)
            )
        )

    def sharding(self, axes: Sequence[str], shape: Sequence[int]) -> Sharding:
        """Return where an array with these axes lies."""
        return self._sharding(self.partition(axes, shape))

    def shard_shape(self, axes: Sequence[str], shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of one device's part of an array."""
        partition = self.partition(axes, shape)
        return tuple(
            size if axis is None else size // self.num_devices for axis, size in zip(partition, shape, strict=True)
        )

    def constrain(self, array: jax.Array, axes: Sequence[str]) -> jax.Array:
        """Say, inside a traced function, that an array lies as its axes' names say."""
        if self.num_devices == 1:
            return array
        return jax.lax.with_sharding_constraint(array, self.sharding(axes, array.shape))

    def gather(self, array: jax.Array) -> jax.Array:
        """Bring, inside a traced function, the whole of an array to every device."""
        return array if self.num_devices == 1 else jax.lax.with_sharding_constraint(array, self.whole)

    def put(self, array: np.ndarray, axes: Sequence[str]) -> jax.Array:
        """Place an array of the host: each device gets its part, and none ever has the whole if it is split."""
        return jax.make_array_from_callback(
            array.shape, self.sharding(axes, array.shape), lambda part: array[part], dtype=array.dtype
        )

    def alias_host_arrays(self, arrays: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Make arrays of the host the device's, which has the same memory, without a copy if they are aligned."""
        placed = jax.block_until_ready(jax.device_put(list(arrays.values()), self.whole, may_alias=True))
        return dict(zip(arrays, placed, strict=True))

    def _sharding(self, partition: PartitionSpec) -> Sharding:
        # A sharding over one device of many would be another type than what a plain `device_put` gives.
        if self.num_devices == 1:
            return SingleDeviceSharding(self.devices[0])  # pyright: ignore[reportArgumentType]
        return NamedSharding(self.named, partition)


def choose_mesh(devices: Sequence[Device], *, wanted: int | None, sizes: Mapping[str, int]) -> DeviceMesh:
    """Choose how many devices of this host to use.

    Without a wish: as many as there are and the sizes divide by; on a CPU one, because devices that share one
    processor only get in one another's way.

    Args:
        devices: those of this host.
        wanted: TENSOR_PARALLEL; None for the automatic choice.
        sizes: what of the model must divide by the number of devices, by the name that its configuration gives it.

    Raises:
        SettingsError: so many devices are not there, or something does not divide by their number.
    """
    possible = [number for number in range(1, len(devices) + 1) if all(size % number == 0 for size in sizes.values())]
    if wanted is None:
        return DeviceMesh(tuple(devices[: 1 if devices[0].platform == "cpu" else possible[-1]]))
    if wanted not in possible:
        named = " and ".join(f"{name} = {size}" for name, size in sizes.items())
        raise SettingsError(
            "TENSOR_PARALLEL",
            f"is {wanted}. Devices of this host: {len(devices)} ({devices[0].platform}). The model's {named} must "
            f"divide by the number that is used. Possible here: {', '.join(map(str, possible))}.",
        )
    return DeviceMesh(tuple(devices[:wanted]))
