"""A plugin of pytest that gives the native calls of a process to a library for another machine, which is emulated.

`LEVSERVE_EMULATED` is the command that starts `requested.cc` with the library, in an emulator.
"""

import functools
import os
import shlex
import subprocess
import threading
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from service.device.native import library

# Source: `XLA_FFI_DataType` in xla/ffi/api/c_api.h
DTYPES = {"int8": 2, "int32": 4, "float32": 11, "bfloat16": 16, "float8_e4m3fn": 20}
UNWRITTEN = 0x55  # of each byte of a result


class Emulator:
    """A process that makes one call after the other."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lock = threading.Lock()
        self.instructions = self._process.stdout.readline().decode().strip()

    def call(self, name: str, aliases: Mapping[int, int], shapes: Sequence[jax.ShapeDtypeStruct], *operands):
        """Return the results of a call; those that are aliases begin as the operands."""
        operands = [np.asarray(operand) for operand in operands]
        results = [np.full(each.size * each.dtype.itemsize, UNWRITTEN, np.uint8) for each in shapes]
        results = [octets.view(each.dtype).reshape(each.shape) for octets, each in zip(results, shapes, strict=True)]
        for operand, result in aliases.items():
            results[result] = operands[operand]
        request = np.int64(len(name)).tobytes() + name.encode() + _packed(operands) + _packed(results)
        with self._lock:
            self._process.stdin.write(request)
            self._process.stdin.flush()
            (code,) = np.frombuffer(self._process.stdout.read(8), np.int64)
            octets = [self._process.stdout.read(each.nbytes) for each in results]
        assert code == 0, f"{name} failed with {code}"
        return [np.frombuffer(some, each.dtype).reshape(each.shape) for some, each in zip(octets, shapes, strict=True)]

    def close(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def _packed(arrays: Sequence[np.ndarray]) -> bytes:
    parts = [np.int64(len(arrays)).tobytes()]
    for array in arrays:
        parts.append(np.array([DTYPES[array.dtype.name], array.nbytes, array.ndim, *array.shape], np.int64).tobytes())
        parts.append(array.tobytes())
    return b"".join(parts)


EMULATOR = Emulator(shlex.split(os.environ["LEVSERVE_EMULATED"]))


def emulated_call(name: str, results, *, input_output_aliases: Mapping[int, int] | None = None):
    """Stand in for `jax.ffi.ffi_call`."""
    shapes, structure = jax.tree.flatten(results)

    def call(*operands):
        made = jax.pure_callback(
            functools.partial(EMULATOR.call, name, input_output_aliases or {}, shapes), shapes, *operands
        )
        return structure.unflatten(made)

    return call


library.native_code = lambda: library.NativeCode(EMULATOR.instructions)
library.register_native_calls = lambda: None
jax.ffi.ffi_call = emulated_call


def pytest_unconfigure() -> None:
    EMULATOR.close()
