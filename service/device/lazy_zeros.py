"""Zeros on a CPU that occupy memory only from when they are written.

XLA fills an array of zeros, so the kernel of the operating system clears and maps every page of it: half a second for
400 MB. Fresh pages of an anonymous mapping are zero already. So a custom call has XLA allocate an array, gives its
pages back to the system and writes nothing.
"""

import ctypes
import functools
import math
import mmap
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Array, DTypeLike

TARGET = "levserve_lazy_zeros"

# Source of these, and of the structures: XLA, xla/ffi/api/c_api.h.
_API_VERSION = (0, 4)
_METADATA = 1
_ITEM_SIZES = {2: 1, 10: 2, 11: 4, 16: 2, 20: 1}  # int8, float16, float32, bfloat16, float8_e4m3fn


class _Extension(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("type", ctypes.c_int), ("next", ctypes.c_void_p))


class _Metadata(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("version_size", ctypes.c_size_t),
        ("version_extension", ctypes.c_void_p),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
    )


class _MetadataExtension(ctypes.Structure):
    _fields_ = (("base", _Extension), ("metadata", ctypes.POINTER(_Metadata)))


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    )


class _Buffers(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("number", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("buffers", ctypes.POINTER(ctypes.POINTER(_Buffer))),
    )


class _CallFrame(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.POINTER(_MetadataExtension)),
        ("api", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("arguments", _Buffers),
        ("results", _Buffers),
    )


def lazy_zeros(shape: tuple[int, ...], dtype: "DTypeLike") -> "Array":
    """Return zeros, of one of the types of a KV cache, that occupy memory only from when they are written."""
    import jax  # a start that finds its bundle traces nothing

    register_lazy_zeros()
    zeros: Array = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct(shape, dtype))()
    return zeros


@functools.cache
def register_lazy_zeros() -> None:
    """Tell XLA of the custom call; until then an executable that has one does not load."""
    import jax.ffi

    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(_handle), platform="cpu")


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_CallFrame))
def _handle(frame: Any) -> None:
    """Tell XLA the version of the interface, if it asks, or clear the results; no error is returned."""
    call = frame.contents
    if call.extension and call.extension.contents.base.type == _METADATA:
        metadata = call.extension.contents.metadata.contents
        metadata.major, metadata.minor = _API_VERSION
        return
    for index in range(call.results.number):
        buffer = call.results.buffers[index].contents
        _clear(buffer.data, math.prod(buffer.dims[: buffer.rank]) * _ITEM_SIZES[buffer.dtype])


def _clear(address: int, num_bytes: int) -> None:
    """Make memory zero; whole pages are given back to the system, which maps fresh ones when they are written."""
    end = address + num_bytes
    first_page = min(-(-address // mmap.PAGESIZE) * mmap.PAGESIZE, end)
    after_pages = max(end // mmap.PAGESIZE * mmap.PAGESIZE, first_page)
    # Other systems than Linux keep what the pages hold.
    if sys.platform != "linux" or _madvise(first_page, after_pages - first_page, mmap.MADV_DONTNEED) != 0:
        ctypes.memset(address, 0, num_bytes)
        return
    ctypes.memset(address, 0, first_page - address)
    ctypes.memset(after_pages, 0, end - after_pages)


def _madvise(address: int, num_bytes: int, advice: int) -> int:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return madvise(address, num_bytes, advice)
