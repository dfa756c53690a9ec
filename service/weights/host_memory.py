"""Host memory for weights: a bound on what is staged for a device, and huge pages for what stays on the host."""

import ctypes
import mmap
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

# XLA uses an array of the host without a copy if it begins at a multiple of this.
ALIGNMENT_BYTES = 64
# Source: man 2 madvise; since Linux 5.14, and a harmless error before.
MADV_POPULATE_WRITE = 23
# While the kernel populates this much, other threads that change the address space, as imports do, have to wait.
POPULATE_BYTES = 2 * 1024 * 1024

CHECK_INTERVAL_S = 0.2  # of a waiting thread, for a cancellation or the deadline


class HostMemoryBudget:
    """A bound on staged bytes, shared by threads: one that needs more than is left waits while others are at work."""

    def __init__(self, max_bytes: int) -> None:
        """Hold nothing."""
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._num_at_work = 0
        self._changed = threading.Condition()

    @contextmanager
    def reserve(self, num_bytes: int, check: Callable[[], None]) -> Iterator[None]:
        """Hold bytes from the beginning of the body until `give_back`, which may be called much later.

        A reservation larger than the bound is granted when no other body is running, which could give bytes back.

        Args:
            num_bytes: the host memory that the body takes.
            check: called while waiting; an exception that it raises ends the wait.
        """
        with self._changed:
            while self._num_at_work and self._held_bytes + num_bytes > self._max_bytes and num_bytes:
                self._changed.wait(CHECK_INTERVAL_S)
                check()
            self._held_bytes += num_bytes
            self._num_at_work += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_at_work -= 1
                self._changed.notify_all()

    def give_back(self, num_bytes: int) -> None:
        """Free bytes that were reserved."""
        with self._changed:
            self._held_bytes -= num_bytes
            self._changed.notify_all()


def populated_memory(num_bytes: int) -> np.ndarray:
    """Return uint8 of shape [num_bytes] in huge pages, where there are any, which a thread populates.

    Populating fresh pages takes the kernel longer than filling them, above all where the host of a virtual machine has
    reclaimed them; and threads that touch a fresh huge page at the same time each clear one, all but one in vain.
    """
    length = -(-max(num_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    mapped = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = np.frombuffer(mapped, np.uint8)
    if sys.platform == "linux":
        mapped.madvise(mmap.MADV_HUGEPAGE)
        threading.Thread(target=_populate, args=(memory,), name="populate", daemon=True).start()
    return memory[:num_bytes]


def _populate(memory: np.ndarray) -> None:
    # Bytes that other threads write at the same time stay. A call through ctypes releases the GIL.
    advise = ctypes.CDLL(None).madvise
    for first in range(0, len(memory), POPULATE_BYTES):
        length = min(POPULATE_BYTES, len(memory) - first)
        if advise(ctypes.c_void_p(memory.ctypes.data + first), ctypes.c_size_t(length), MADV_POPULATE_WRITE):
            return
