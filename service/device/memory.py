"""How many bytes the device has, and how many KV pages fit: computed from the configuration, never profiled.

The same start on the same kind of device gives the same number of pages.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

# Where a container's memory limit stands.
# Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))

# What a driver makes: NVIDIA's for GPUs, Linux's for TPUs, the older and the newer.
ACCELERATOR_FILES = ("nvidia[0-9]*", "accel*", "vfio/[0-9]*")


@runtime_checkable
class Device(Protocol):
    """What is asked of a `jax.Device`, which jax names no type for."""

    id: int  # among all devices of all hosts
    platform: str  # cpu, gpu, tpu
    device_kind: str
    client: Any  # the backend that it belongs to

    def memory_stats(self) -> Mapping[str, int] | None:
        """Return the allocator's figures, where it keeps any."""
        ...


def device_memory_bytes(devices: Sequence[Device]) -> int:
    """Return the memory that programs may use on each of some devices that share the work.

    An accelerator's own, the smallest of them; or, on a CPU, an equal part of the host's or the container's.
    """
    if devices[0].platform != "cpu":
        all_stats = [device.memory_stats() for device in devices]
        if limits := [int(stats["bytes_limit"]) for stats in all_stats if stats]:
            return min(limits)
    return host_memory_bytes() // len(devices)


def expects_cpu(driver_files: Sequence[str] = ACCELERATOR_FILES) -> bool:
    """Guess, before jax is imported, whether its device will be a CPU: no driver has made a file for another."""
    return not any(any(Path("/dev").glob(name)) for name in driver_files)


def host_memory_bytes() -> int:
    """Return the memory of this host, or what a container may have of it."""
    host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [int(text) for path in _CGROUP_LIMITS if path.is_file() and (text := path.read_text().strip()).isdigit()]
    return min([host_bytes, *limits])
