"""Zeros on a CPU that occupy memory only from when they are written.

XLA fills an array of zeros, so the kernel of the operating system clears and maps every page of it: half a second for
400 MB. Fresh pages of an anonymous mapping are zero already. So a custom call has XLA allocate an array, gives its
pages back to the system and writes nothing.
"""

from typing import TYPE_CHECKING

from service.device.native.library import ZEROS_TARGET, NativeCode, native_code, register_native_calls

if TYPE_CHECKING:
    from jaxtyping import Array, DTypeLike


def lazy_zeros(shape: tuple[int, ...], dtype: "DTypeLike") -> "Array":
    """Return zeros, of one of the types of a KV cache, that occupy memory only from when they are written.

    Without native code they are XLA's, which occupy memory at once.
    """
    import jax  # a start that finds its bundle traces nothing
    import jax.numpy as jnp

    if native_code() is NativeCode.NONE:
        return jnp.zeros(shape, dtype)
    register_native_calls()
    zeros: Array = jax.ffi.ffi_call(ZEROS_TARGET, jax.ShapeDtypeStruct(shape, dtype))()
    return zeros
