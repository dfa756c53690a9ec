"""The speed at which all cores read memory, which bounds decode steps: each reads all weights.

Source: McCalpin 1995, "Memory Bandwidth and Machine Balance in Current High Performance Computers" (STREAM)
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax

from service.device.native.library import memory_calls

ROUNDS = 3  # of which the fastest counts
MOST_BYTES = 1 << 28  # that a round reads: running streams wait meanwhile
PART_BYTES = 1 << 20  # that a thread reads at a time


def count_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def measure_read_speed(arrays: Sequence[jax.Array]) -> float | None:
    """Return the bytes a second at which all cores read arrays from memory rather than from the processor's caches.

    None where the arrays are not on a CPU, or hold nothing, or there is no native code.
    """
    calls = memory_calls()
    if calls is None or not arrays or any(device.platform != "cpu" for device in arrays[0].devices()):
        return None
    parts: list[tuple[int, int]] = []  # addresses and sizes
    num_bytes = 0
    for array in arrays:
        shard = array.addressable_shards[0].data
        address, end = shard.unsafe_buffer_pointer(), min(shard.nbytes, MOST_BYTES - num_bytes)
        parts += [(address + first, min(PART_BYTES, end - first)) for first in range(0, end, PART_BYTES)]
        num_bytes += end
    if num_bytes == 0:
        return None

    def seconds(call: Callable[[int, int], object]) -> float:
        began_s = time.perf_counter()
        list(pool.map(lambda part: call(*part), parts))
        return time.perf_counter() - began_s

    rounds_s = []
    with ThreadPoolExecutor(count_cores()) as pool:
        for _ in range(ROUNDS):
            seconds(calls.flush)
            rounds_s.append(seconds(calls.read))
    return num_bytes / min(rounds_s)
