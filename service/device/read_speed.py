"""Measure the speed at which all cores read memory, which bounds decode steps: each reads all weights.

Source: McCalpin 1995, "Memory Bandwidth and Machine Balance in Current High Performance Computers" (STREAM)
"""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax

from service.device.native.library import memory_reader

ROUNDS = 3  # of which the fastest counts
MOST_BYTES = 1 << 28  # that a round reads: running streams wait meanwhile
PART_BYTES = 1 << 20  # that a thread reads at a time


@dataclass(frozen=True)
class ReadSpeed:
    """What reading some arrays from a CPU's memory takes."""

    bytes_per_s: float
    num_bytes: int  # of all arrays

    @property
    def passes_per_s(self) -> float:
        """How often all arrays can be read in a second."""
        return self.bytes_per_s / self.num_bytes


def measure_read_speed(arrays: Sequence[jax.Array]) -> ReadSpeed | None:
    """Read arrays on a CPU with all its cores; None where they are on another device, or there is no native code.

    Arrays that the caches of the processor hold are read faster than memory is.
    """
    read = memory_reader()
    if read is None or not arrays or any(device.platform != "cpu" for device in arrays[0].devices()):
        return None
    parts, num_bytes = [], 0
    for array in arrays:
        address = array.addressable_shards[0].data.unsafe_buffer_pointer()
        end = min(array.nbytes, MOST_BYTES - num_bytes)
        parts += [(address + first, min(PART_BYTES, end - first)) for first in range(0, end, PART_BYTES)]
        num_bytes += array.nbytes
    read_bytes = sum(size for _, size in parts)

    def seconds() -> float:
        began_s = time.perf_counter()
        list(pool.map(lambda part: read(*part), parts))
        return time.perf_counter() - began_s

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        fastest_s = min(seconds() for _ in range(ROUNDS))
    return ReadSpeed(read_bytes / fastest_s, num_bytes)
