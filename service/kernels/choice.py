"""The choice of an attention kernel, from numbers alone, so that a warm start imports no kernel.

All its inputs are in a bundle's key: the device's kind and number, the model, the dtype and this source.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from service.device.chips import cuda_capability
from service.device.memory import Device
from service.kernels.attention import AttentionKernel
from service.kernels.cache_layout import CacheLayout
from service.kernels.limits import (
    AMPERE,
    GPU_LARGEST_HEAD_DIM,
    LARGEST_CACHED,
    TPU_LANES,
    TPU_OCTET_PAGE_SIZES,
    TPU_TABLE_BYTES,
    tpu_cached_heads,
)


class KernelName(StrEnum):
    """The kernels of this package."""

    ROWS = "rows"
    TRITON = "triton"
    RAGGED = "ragged"
    OCTETS = "octets"
    REFERENCE = "reference"


@dataclass(frozen=True)
class HeadShape:
    """The properties of a model's attention that limit the choice of a kernel."""

    num_kv_heads: int  # on one device
    head_dim: int
    dtype: np.dtype
    kv_dtype: np.dtype | None = None  # of cached keys and values; None for `dtype`
    has_sinks: bool = False

    @property
    def cached_dtype(self) -> np.dtype:
        """The dtype of cached keys and values."""
        return self.kv_dtype or self.dtype


@dataclass(frozen=True)
class KernelChoice:
    """A kernel by name."""

    name: KernelName
    cached_head_dim: int  # dimensions that a cached key or value takes, padding included
    cached_kv_heads: int  # on one device, padding included
    cached_dtype: str  # of keys and values
    device_kind: str  # JAX's name of the device
    obstacle: str | None = None  # why the device's own kernel cannot be used and the reference is

    @property
    def has_slot_cache(self) -> bool:
        """Whether the kernel keeps a row per slot, and pages as copies; the others keep pages alone."""
        return self.name is KernelName.ROWS

    @property
    def max_table_bytes(self) -> int | None:
        """How large the page table of a step may be; None for any size."""
        return TPU_TABLE_BYTES if self.name in (KernelName.RAGGED, KernelName.OCTETS) else None

    @property
    def page_sizes(self) -> tuple[int, ...] | None:
        """The numbers of positions that a page may have; None for any."""
        return TPU_OCTET_PAGE_SIZES if self.name is KernelName.OCTETS else None

    def kernel(self, layout: CacheLayout) -> AttentionKernel:
        """Return the kernel, whose modules only tracing needs."""
        match self.name:
            case KernelName.ROWS:
                from service.kernels.cpu import RowAttention

                return RowAttention(layout)
            case KernelName.TRITON:
                from service.kernels.gpu import TritonAttention

                return TritonAttention()
            case KernelName.RAGGED:
                from service.kernels.tpu import RaggedAttention

                return RaggedAttention(self.device_kind)
            case KernelName.OCTETS:
                from service.kernels.tpu_octets import OctetAttention

                return OctetAttention(self.cached_dtype)
            case KernelName.REFERENCE:
                from service.kernels.reference import PagedReference

                return PagedReference()


def choose_kernel(device: Device, heads: HeadShape) -> KernelChoice:
    """Choose the kernel of a device's platform (`cpu`, `gpu`, `tpu`), or the reference for shapes it does not take."""
    of_device = (heads.cached_dtype.name, device.device_kind)
    as_they_are = (heads.head_dim, heads.num_kv_heads, *of_device)
    if device.platform == "cpu":
        return KernelChoice(KernelName.ROWS, *as_they_are)
    if device.platform == "gpu":
        obstacle = _gpu_obstacle(device, heads)
        chosen = KernelChoice(KernelName.TRITON, *as_they_are)
    elif device.platform == "tpu":
        obstacle = _tpu_obstacle(heads)
        cached_heads = tpu_cached_heads(heads.num_kv_heads, heads.cached_dtype)
        name = KernelName.OCTETS if heads.cached_dtype.name in LARGEST_CACHED else KernelName.RAGGED
        chosen = KernelChoice(name, TPU_LANES, cached_heads, *of_device)
    else:
        obstacle, chosen = f"there is none for {device.platform}", None
    if chosen is None or obstacle is not None:
        return KernelChoice(KernelName.REFERENCE, *as_they_are, obstacle)
    return chosen


def _gpu_obstacle(device: Device, heads: HeadShape) -> str | None:
    if cuda_capability(device) < AMPERE:
        capability = getattr(device, "compute_capability", "") or "unknown"
        return f"{device.device_kind} (compute capability {capability}) is not an NVIDIA Ampere or newer"
    if heads.dtype.name not in ("bfloat16", "float16", "float32"):
        return f"it does not take {heads.dtype.name}"
    return _size_obstacle(heads, GPU_LARGEST_HEAD_DIM)


def _tpu_obstacle(heads: HeadShape) -> str | None:
    if heads.dtype.name not in ("bfloat16", "float32"):
        return f"it does not take {heads.dtype.name}"
    if heads.has_sinks:
        return "it does not take sinks"
    return _size_obstacle(heads, TPU_LANES)


def _size_obstacle(heads: HeadShape, largest: int) -> str | None:
    if heads.head_dim > largest:
        return f"it does not take heads of {heads.head_dim} dimensions, {largest} at most"
    return None
