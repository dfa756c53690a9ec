"""The compiled library of products: which of them this processor has, and their names for XLA.

An installation without a C++ compiler has no library, and other processors have no products in it: XLA's own serve.
"""

import ctypes
import functools
import os
from enum import StrEnum
from pathlib import Path

LIBRARY = Path(__file__).with_name("products.so")
FLOAT32_TARGET = "levserve_linear_float32"
INT8_TARGET = "levserve_linear_int8"

_MAX_ISA = "--xla_cpu_max_isa="
_WITHOUT_AVX2 = ("SSE4_2", "AVX")
_WITHOUT_VNNI = ("AVX2", "AVX512")


class NativeProducts(StrEnum):
    """The instructions that a processor's products use."""

    NONE = "none"
    AVX2 = "avx2"
    AVX512 = "avx512"  # with VNNI


@functools.cache
def native_products() -> NativeProducts:
    """Load the library, tell XLA of its products, and return which this processor has.

    XLA's own limit of instructions, `--xla_cpu_max_isa` in XLA_FLAGS, holds for them too.
    """
    allowed = _allowed(os.environ.get("XLA_FLAGS", ""))
    if allowed is NativeProducts.NONE or not LIBRARY.exists():
        return NativeProducts.NONE
    import jax.ffi  # a process that uses no device does without jax

    library = ctypes.CDLL(str(LIBRARY))
    library.levserve_choose_products.restype = ctypes.c_char_p
    library.levserve_choose_products.argtypes = (ctypes.c_bool,)
    for target in (FLOAT32_TARGET, INT8_TARGET):
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(library[target]), platform="cpu")
    return NativeProducts(library.levserve_choose_products(allowed is NativeProducts.AVX512).decode())


def _allowed(flags: str) -> NativeProducts:
    max_isa = next((flag.removeprefix(_MAX_ISA) for flag in reversed(flags.split()) if flag.startswith(_MAX_ISA)), "")
    if max_isa in _WITHOUT_AVX2:
        return NativeProducts.NONE
    return NativeProducts.AVX2 if max_isa in _WITHOUT_VNNI else NativeProducts.AVX512
