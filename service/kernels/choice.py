"""Selection of the attention kernel from plain numbers, so that a warm start imports no kernel.

All inputs are part of a bundle's key: kind and number of devices, model, dtype and this source.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from service.device.chips import cuda_capability
from service.device.memory import Device
from service.device.native.library import native_code
from service.kernels.attention import AttentionKernel
from service.kernels.limits import (
    AMPERE,
    GPU_LARGEST_HEAD_DIM,
    GPU_OFFSETS,
    LARGEST_CACHED,
    TPU_KV8_PAGE_SIZES,
    TPU_LANES,
    TPU_LARGEST_HEAD_DIM,
    TPU_TABLE_BYTES,
    serves_attention,
    tpu_cached_dim,
    tpu_cached_heads,
)


class KernelName(StrEnum):
    """The kernels of this package."""

    NATIVE = "native"
    BLOCKS = "blocks"
    TRITON = "triton"
    RAGGED = "ragged"
    KV8 = "kv8"
    REFERENCE = "reference"


@dataclass(frozen=True)
class HeadShape:
    """The properties of a model's attention that limit the choice of a kernel."""

    num_kv_heads: int  # on one device
    head_dim: int
    dtype: np.dtype
    kv_dtype: np.dtype | None = None  # of cached keys and values; None for `dtype`
    has_sinks: bool = False
    has_memory: bool = False  # of an encoder's output, in pages of the cache
    looks_ahead: bool = False  # whether tokens see positions after their own

    @property
    def cached_dtype(self) -> np.dtype:
        return self.kv_dtype or self.dtype


@dataclass(frozen=True)
class KernelChoice:
    """A kernel by name."""

    name: KernelName
    cached_head_dim: int  # dimensions of a cached key or value, including padding
    cached_kv_heads: int  # on one device, including padding
    cached_dtype: str  # of keys and values
    device_kind: str  # JAX's name for the device
    obstacle: str | None = None  # why the reference replaces the device's own kernel

    @property
    def max_table_bytes(self) -> int | None:
        """The size limit of a step's page table; None for unlimited."""
        return TPU_TABLE_BYTES if self.name in (KernelName.RAGGED, KernelName.KV8) else None

    @property
    def page_sizes(self) -> tuple[int, ...] | None:
        """The supported page sizes in positions; None for any."""
        return TPU_KV8_PAGE_SIZES if self.name is KernelName.KV8 else None

    @property
    def max_positions(self) -> int | None:
        """The number of positions of all pages together that the kernel can address; None for any."""
        is_one_byte = np.dtype(self.cached_dtype).itemsize == 1
        if self.name is not KernelName.TRITON or not is_one_byte:
            return None
        return (GPU_OFFSETS - 1) // (self.cached_head_dim * self.cached_kv_heads)

    def kernel(self) -> AttentionKernel:
        """Import and return the kernel; only tracing needs it."""
        match self.name:
            case KernelName.NATIVE:
                from service.kernels.native_pages import NativePagedAttention

                return NativePagedAttention()
            case KernelName.BLOCKS:
                from service.kernels.blocks import BlockAttention

                return BlockAttention()
            case KernelName.TRITON:
                from service.kernels.gpu import TritonAttention

                return TritonAttention()
            case KernelName.RAGGED:
                from service.kernels.tpu import RaggedAttention

                return RaggedAttention(self.device_kind)
            case KernelName.KV8:
                from service.kernels.tpu_kv8 import Kv8Attention

                return Kv8Attention(self.cached_dtype)
            case KernelName.REFERENCE:
                from service.kernels.reference import PagedReference

                return PagedReference()


@dataclass(frozen=True)
class KernelChoices:
    """The kernel of each kind of a model's heads, of which most models have one."""

    of_heads: tuple[tuple[HeadShape, KernelChoice], ...]

    def of(self, num_kv_heads: int, head_dim: int) -> KernelChoice:
        """Return the kernel of heads of a size; `num_kv_heads` are those of one device."""
        return next(
            choice
            for heads, choice in self.of_heads
            if (heads.num_kv_heads, heads.head_dim) == (num_kv_heads, head_dim)
        )

    @property
    def name(self) -> str:
        """The names of the kernels, each once."""
        return "+".join(dict.fromkeys(choice.name.value for choice in self._each))

    @property
    def is_reference(self) -> bool:
        """Whether no layer has the device's own kernel."""
        return all(choice.name is KernelName.REFERENCE for choice in self._each)

    @property
    def obstacle(self) -> str | None:
        """Why the reference replaces a kernel of the device."""
        return next((choice.obstacle for choice in self._each if choice.obstacle is not None), None)

    @property
    def max_table_bytes(self) -> int | None:
        """The size limit of a step's page table; None for unlimited."""
        return min(
            (choice.max_table_bytes for choice in self._each if choice.max_table_bytes is not None), default=None
        )

    @property
    def page_sizes(self) -> tuple[int, ...] | None:
        """The page sizes in positions that all kernels support; None for any."""
        limited = [choice.page_sizes for choice in self._each if choice.page_sizes is not None]
        return tuple(size for size in limited[0] if all(size in sizes for sizes in limited)) if limited else None

    @property
    def max_positions(self) -> int | None:
        """The number of positions of all pages together that every kernel can address; None for any."""
        return min((choice.max_positions for choice in self._each if choice.max_positions is not None), default=None)

    def kernel(self) -> AttentionKernel:
        """Import and return the kernel; only tracing needs it."""
        if len({choice.name for choice in self._each}) == 1:
            return self._each[0].kernel()
        from service.kernels.by_head_dim import AttentionByHeadDim, TpuAttentionByHeadDim

        kernels = tuple((heads.head_dim, choice.kernel()) for heads, choice in self.of_heads)
        has_axis_of_tpus = any(kernel.kv_head_axis == TpuAttentionByHeadDim.kv_head_axis for _, kernel in kernels)
        return (TpuAttentionByHeadDim if has_axis_of_tpus else AttentionByHeadDim)(kernels)

    @property
    def _each(self) -> tuple[KernelChoice, ...]:
        return tuple(choice for _, choice in self.of_heads)


def choose_kernels(device: Device, kinds: Sequence[HeadShape], fault: str | None = None) -> KernelChoices:
    """Choose a kernel for each kind of heads; see `choose_kernel`."""
    return KernelChoices(tuple((heads, choose_kernel(device, heads, fault)) for heads in kinds))


def choose_kernel(device: Device, heads: HeadShape, fault: str | None = None) -> KernelChoice:
    """Choose the kernel for a device's platform (`cpu`, `gpu`, `tpu`), or the reference for unsupported shapes.

    Args:
        device: the device.
        heads: the model's heads.
        fault: what a check has found wrong with the device's own kernel, so that it is not used.
    """
    cache = (heads.cached_dtype.name, device.device_kind)
    unpadded = (heads.head_dim, heads.num_kv_heads, *cache)
    if fault is not None:
        return KernelChoice(KernelName.REFERENCE, *unpadded, fault)
    if device.platform == "cpu":
        is_native = serves_attention(native_code(), heads.cached_dtype, heads.head_dim)
        return KernelChoice(KernelName.NATIVE if is_native else KernelName.BLOCKS, *unpadded)
    if device.platform == "gpu":
        obstacle = _gpu_obstacle(device, heads)
        chosen = KernelChoice(KernelName.TRITON, *unpadded)
    elif device.platform == "tpu":
        obstacle = _tpu_obstacle(heads)
        cached_heads = tpu_cached_heads(heads.num_kv_heads, heads.head_dim, heads.cached_dtype)
        is_of_words = heads.cached_dtype.name in LARGEST_CACHED or heads.head_dim > TPU_LANES
        name = KernelName.KV8 if is_of_words else KernelName.RAGGED
        chosen = KernelChoice(name, tpu_cached_dim(heads.head_dim), cached_heads, *cache)
    else:
        obstacle, chosen = f"there is no kernel for {device.platform}", None
    if chosen is None or obstacle is not None:
        return KernelChoice(KernelName.REFERENCE, *unpadded, obstacle)
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
    if heads.has_memory:
        return "it does not attend to an encoder's output"
    if heads.looks_ahead:
        return "no token sees positions after its own, and those of an image see each other"
    return _size_obstacle(heads, TPU_LANES if heads.cached_dtype.name == "float32" else TPU_LARGEST_HEAD_DIM)


def _size_obstacle(heads: HeadShape, largest: int) -> str | None:
    if heads.head_dim > largest:
        return f"it supports heads of at most {largest} dimensions, not {heads.head_dim}"
    return None
