"""The host's memory for weights that XLA takes over: one piece, whose pages become real in the background.

To get fresh pages ready takes the kernel longer than to fill them, above all where the host of a virtual machine has
taken them back. And threads that touch a fresh huge page at the same time each clear one, all but one of them in vain.
"""

import ctypes
import mmap
import sys
import threading

import numpy as np

# XLA takes over an array of the host without a copy if it begins at a multiple of this.
ALIGNMENT_BYTES = 64
# Of which one page after the other is touched, without Python's lock; who takes the memory waits so long at most.
TOUCH_BYTES = 16 * 1024 * 1024
# Source: man 2 madvise; since Linux 5.14, and an error that does no harm before.
MADV_POPULATE_WRITE = 23
# Whoever asks for addresses, as an import does all the time, waits until the kernel is done with so much.
POPULATE_BYTES = 2 * 1024 * 1024


class FreshMemory:
    """One piece of memory, got ready from its beginning on, in huge pages where there are any."""

    def __init__(self, num_bytes: int) -> None:
        """Begin to get it ready."""
        length = -(-max(num_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        mapped = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if sys.platform == "linux":
            mapped.madvise(mmap.MADV_HUGEPAGE)
        self._memory = np.frombuffer(mapped, np.uint8)
        self._num_bytes = num_bytes
        self._ready_bytes = 0
        self._lock = threading.Lock()  # held while pages are touched
        self._is_taken = False
        threading.Thread(target=self._get_ready, name="memory", daemon=True).start()

    def take(self) -> np.ndarray:
        """Return the memory, to be written to; it lives as long as an array over it."""
        with self._lock:
            self._is_taken = True
        return self._memory[: self._num_bytes]

    def _get_ready(self) -> None:
        while self._ready_bytes < len(self._memory):
            with self._lock:
                if self._is_taken:
                    break
                end = min(self._ready_bytes + TOUCH_BYTES, len(self._memory))
                # A fault, unlike `_populate`, keeps no other thread from asking for addresses.
                self._memory[self._ready_bytes : end : mmap.PAGESIZE] = 0
                self._ready_bytes = end
        if sys.platform == "linux":
            _populate(self._memory[self._ready_bytes :])


def _populate(memory: np.ndarray) -> None:
    # What is written meanwhile stays, unlike with a touch. Through ctypes, because that lets other threads run.
    advise = ctypes.CDLL(None).madvise
    for first in range(0, len(memory), POPULATE_BYTES):
        length = min(POPULATE_BYTES, len(memory) - first)
        if advise(ctypes.c_void_p(memory.ctypes.data + first), ctypes.c_size_t(length), MADV_POPULATE_WRITE):
            return
