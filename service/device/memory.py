"""The memory of devices and of the host, as reported by drivers and cgroups."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from service.device.chips import CHIPS
from service.errors import UnknownDeviceMemory

# Files with a container's memory limit, in bytes.
# Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))

# Device files below /dev: NVIDIA's driver, and the older and newer TPU drivers.
NVIDIA_FILES = "nvidia[0-9]*"
ACCELERATOR_FILES = (NVIDIA_FILES, "accel*", "vfio/[0-9]*")

# Host memory is shared with other processes; accelerator memory is not. A GPU's driver, modules and kernel libraries
# need 0.5 to 1.5 GB outside of the pool. Source: https://docs.vllm.ai/en/latest/configuration/engine_args.html (0.9)
CPU_FRACTION = 0.5
ACCELERATOR_FRACTION = 0.9
# The rest of a GPU's pool covers fragmentation, and temporary arrays beyond the planned work space.
POOL_FRACTION = 0.95
# The relative difference allowed between the reported and the known memory of a device.
TOLERANCE = 0.01


@runtime_checkable
class Device(Protocol):
    """The attributes of a `jax.Device` that the service reads."""

    id: int  # among all devices of all hosts
    platform: str  # cpu, gpu, tpu
    device_kind: str
    client: Any  # the backend that it belongs to

    def memory_stats(self) -> Mapping[str, int] | None:
        """Return the allocator's statistics in bytes, or None if it has none."""
        ...


def usable_memory_bytes(devices: Sequence[Device], fraction: float | None = None) -> int:
    """Return the memory in bytes for weights, cache and work space on each device.

    Accelerators use the smallest of their limits; CPU devices share the memory of the host or container equally.

    Args:
        devices: devices of one platform.
        fraction: the fraction that the operator configured; None for the platform's default.

    Raises:
        UnknownDeviceMemory: an accelerator does not report its memory.
    """
    platform = devices[0].platform
    if platform == "cpu":
        return int(host_memory_bytes() // len(devices) * (fraction or CPU_FRACTION))
    limits = [_limit_bytes(device, fraction) for device in devices]
    if not all(limits):
        raise UnknownDeviceMemory(platform, devices[0].device_kind)
    return int(min(limits) * (POOL_FRACTION if platform == "gpu" else fraction or ACCELERATOR_FRACTION))


def is_absent(device: Device) -> bool:
    """Return whether a device is on another machine, so that programs are only compiled for it."""
    local_devices = getattr(device.client, "local_devices", None)
    return local_devices is not None and device not in local_devices()


def _limit_bytes(device: Device, fraction: float | None) -> int:
    """Return the memory in bytes that XLA can allocate; 0 if unknown."""
    chip = CHIPS.get(device.device_kind)
    # XLA's pool is this fraction of the memory that CUDA reports.
    # Source: https://github.com/openxla/xla/blob/main/xla/pjrt/gpu/gpu_helpers.cc (CreateBFCAllocator)
    pool_fraction = (fraction or ACCELERATOR_FRACTION) if device.platform == "gpu" else 1
    known_bytes = 0 if chip is None else int(chip.memory_bytes * pool_fraction)
    if is_absent(device):
        return known_bytes
    reported_bytes = int((device.memory_stats() or {}).get("bytes_limit", 0))
    is_about_equal = abs(reported_bytes - known_bytes) <= TOLERANCE * known_bytes
    return known_bytes if is_about_equal else reported_bytes  # the same plan as when compiled without the device


def expects_cpu(driver_files: Sequence[str] = ACCELERATOR_FILES) -> bool:
    """Guess, before jax is imported, whether it will use the CPU, from the absence of accelerator device files."""
    return not any(any(Path("/dev").glob(name)) for name in driver_files)


def host_memory_bytes() -> int:
    """Return the memory of this host, or of this container if it has a limit, in bytes."""
    host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [int(text) for path in _CGROUP_LIMITS if path.is_file() and (text := path.read_text().strip()).isdigit()]
    return min([host_bytes, *limits])
