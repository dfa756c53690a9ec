"""The compiled library of custom calls: what it offers on this processor, and its names for XLA.

An installation without a C++ compiler has no library. XLA's own operations then serve.
"""

import ctypes
import functools
import logging
import os
import struct
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from service.device.native import sources

LIBRARY = Path(__file__).with_name("native.so")
FLOAT32_TARGET = "levserve_linear_float32"
BFLOAT16_TARGET = "levserve_linear_bfloat16"
ROUNDED_TARGET = "levserve_linear_rounded"
INT8_TARGET = "levserve_linear_int8"
INT4_TARGET = "levserve_linear_int4"
QUANTIZED_INT4_TARGET = "levserve_linear_quantized_int4"
GROUPED_FLOAT32_TARGET = "levserve_grouped_float32"
GROUPED_BFLOAT16_TARGET = "levserve_grouped_bfloat16"
GROUPED_ROUNDED_TARGET = "levserve_grouped_rounded"
GROUPED_INT8_TARGET = "levserve_grouped_int8"
ADAPTERS_TARGET = "levserve_adapters"
ATTENTION_TARGET = "levserve_paged_attention"
MEMORY_ATTENTION_TARGET = "levserve_memory_attention"
CORRECT_STATES_TARGET = "levserve_correct_states"
ADD_STATES_TARGET = "levserve_add_states"
CONVOLVE_STATES_TARGET = "levserve_convolve_states"
ZEROS_TARGET = "levserve_lazy_zeros"
TARGETS = (
    *(FLOAT32_TARGET, BFLOAT16_TARGET, ROUNDED_TARGET, INT8_TARGET, INT4_TARGET, QUANTIZED_INT4_TARGET),
    *(GROUPED_FLOAT32_TARGET, GROUPED_BFLOAT16_TARGET, GROUPED_ROUNDED_TARGET, GROUPED_INT8_TARGET),
    *(ADAPTERS_TARGET, ATTENTION_TARGET, MEMORY_ATTENTION_TARGET),
    *(CORRECT_STATES_TARGET, ADD_STATES_TARGET, CONVOLVE_STATES_TARGET, ZEROS_TARGET),
)

_MAX_ISA = "--xla_cpu_max_isa="
_WITHOUT_AVX2 = ("SSE4_2", "AVX")
_WITHOUT_VNNI = (*_WITHOUT_AVX2, "AVX2", "AVX512")
_WITHOUT_BF16 = (*_WITHOUT_VNNI, "AVX512_VNNI")
_WITHOUT_AMX = (*_WITHOUT_BF16, "AVX512_BF16")

logger = logging.getLogger(__name__)


class NativeCode(StrEnum):
    """What the library offers, by the instructions that it may use."""

    NONE = "none"  # there is no library, or none that fits
    BASE = "base"  # calls that need no instructions of their own: zeros
    AVX2 = "avx2"  # products and attention too
    AVX512 = "avx512"  # the same with AVX-512 VNNI
    AVX512_BF16 = "avx512_bf16"  # the same, and products of bfloat16 by bfloat16
    AMX = "amx"  # those of AVX512_BF16, where XLA has matrix units for many tokens in int8
    NEON = "neon"  # products and attention on Arm, in int8 with dotprod where the processor has it

    @property
    def has_products(self) -> bool:
        """Whether there are products for this processor."""
        return self not in (NativeCode.NONE, NativeCode.BASE)

    @property
    def rounds_tokens(self) -> bool:
        """Whether there are products of tokens rounded to bfloat16, which are faster than those of float32."""
        return self in (NativeCode.AVX512_BF16, NativeCode.AMX)

    @property
    def quantizes_parts(self) -> bool:
        """Whether there are products of weights in 4 bits with parts of tokens that are quantized to 8 bits."""
        return self.has_products and self is not NativeCode.NEON


@functools.cache
def native_code() -> NativeCode:
    """Load the library and return what it offers for arrays on a CPU.

    XLA's own limit of instructions on x86-64, `--xla_cpu_max_isa` in XLA_FLAGS, holds for it too.
    """
    library = _library(LIBRARY)
    if library is None:
        return NativeCode.NONE
    max_isa = _max_isa(os.environ.get("XLA_FLAGS", ""))
    found = library.levserve_initialize(
        *(max_isa not in each for each in (_WITHOUT_AVX2, _WITHOUT_VNNI, _WITHOUT_BF16, _WITHOUT_AMX))
    )
    return NativeCode(found.decode())


@functools.cache
def register_native_calls() -> None:
    """Register the calls with XLA; until then an executable that makes one does not load."""
    library = _library(LIBRARY)
    if library is None or native_code() is NativeCode.NONE:
        return
    import jax.ffi  # a process that uses no device does without jax

    for target in TARGETS:
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(library[target]), platform="cpu")


class MemoryCalls(NamedTuple):
    """Functions of an address and a number of bytes, which run without the GIL."""

    read: Callable[[int, int], object]
    flush: Callable[[int, int], object]  # from the caches of the processor


def memory_calls() -> MemoryCalls | None:
    """Return the functions that measure memory; None if there is no library."""
    library = _library(LIBRARY)
    return None if library is None else MemoryCalls(library.levserve_read, library.levserve_flush)


@functools.cache
def _library(path: Path) -> ctypes.CDLL | None:
    if not path.exists():
        logger.info("no native code was compiled when Levserve was installed: XLA computes all products")
        return None
    try:
        return _load(path)
    except (OSError, AttributeError, ValueError) as error:
        message = "the native code does not load, so XLA computes all products; reinstall Levserve on this machine"
        logger.warning(message, extra={"path": str(path), "reason": str(error)})
        return None


def _load(path: Path) -> ctypes.CDLL:
    """Load a library, after checks.

    Raises:
        OSError: the file is unreadable, or the system refuses it.
        AttributeError: it lacks a function.
        ValueError: it is truncated, or was compiled from other sources.
    """
    _check_length(path)
    library = ctypes.CDLL(str(path))
    library.levserve_sources.restype = library.levserve_initialize.restype = ctypes.c_char_p
    library.levserve_initialize.argtypes = (ctypes.c_bool,) * 4
    if library.levserve_sources().decode() != sources.digest(path.parent):
        raise ValueError("it was compiled from other sources")
    for target in TARGETS:
        library[target]
    library.levserve_read.argtypes = library.levserve_flush.argtypes = (ctypes.c_void_p, ctypes.c_int64)
    library.levserve_read.restype, library.levserve_flush.restype = ctypes.c_uint64, None
    return library


def _check_length(path: Path) -> None:
    """Check that a file reaches to its table of sections, the last part of it: the system maps one that does not.

    Source: System V ABI, chapter 4, "ELF Header" (64 bits).

    Raises:
        OSError: the file is unreadable.
        ValueError: it is truncated.
    """
    with path.open("rb") as file:
        header, num_bytes = file.read(64), path.stat().st_size
    if len(header) < 64:
        raise ValueError("it is truncated")
    (offset,) = struct.unpack_from("<Q", header, 40)
    entry_bytes, num_entries = struct.unpack_from("<HH", header, 58)
    if num_bytes < offset + entry_bytes * num_entries:
        raise ValueError("it is truncated")


def _max_isa(flags: str) -> str:
    return next((flag.removeprefix(_MAX_ISA) for flag in reversed(flags.split()) if flag.startswith(_MAX_ISA)), "")
