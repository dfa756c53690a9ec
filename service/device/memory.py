"""The memory of devices and of the host, as their drivers and control groups report it."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

# Files with a container's memory limit, in bytes.
# Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))

# Device files, below /dev: of NVIDIA's driver for GPUs, and of the older and the newer driver for TPUs.
ACCELERATOR_FILES = ("nvidia[0-9]*", "accel*", "vfio/[0-9]*")


@runtime_checkable
class Device(Protocol):
    """The attributes of a `jax.Device` that the service reads."""

    id: int  # among all devices of all hosts
    platform: str  # cpu, gpu, tpu
    device_kind: str
    client: Any  # the backend that it belongs to

    def memory_stats(self) -> Mapping[str, int] | None:
        """Return the allocator's statistics, in bytes; None if it keeps none."""
        ...


def device_memory_bytes(devices: Sequence[Device]) -> int:
    """Return the memory, in bytes, that programs may use on each of several devices.

    On accelerators the smallest of their limits; on a CPU an equal part of the host's or the container's memory.
    """
    if devices[0].platform != "cpu":
        all_stats = [device.memory_stats() for device in devices]
        if limits := [int(stats["bytes_limit"]) for stats in all_stats if stats]:
            return min(limits)
    return host_memory_bytes() // len(devices)


def expects_cpu(driver_files: Sequence[str] = ACCELERATOR_FILES) -> bool:
    """Guess, before jax is imported, whether its device will be a CPU: there is no accelerator's device file."""
    return not any(any(Path("/dev").glob(name)) for name in driver_files)


def host_memory_bytes() -> int:
    """Return the memory of this host, or of this container if it has a limit, in bytes."""
    host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [int(text) for path in _CGROUP_LIMITS if path.is_file() and (text := path.read_text().strip()).isdigit()]
    return min([host_bytes, *limits])
