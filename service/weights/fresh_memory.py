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
# Source: man 2 madvise; since Linux 5.14, and an error that does no harm before.
MADV_POPULATE_WRITE = 23
# Whoever asks for addresses, as an import does all the time, waits until the kernel is done with so much.
POPULATE_BYTES = 2 * 1024 * 1024


def fresh_memory(num_bytes: int) -> np.ndarray:
    """Return memory in huge pages, where there are any; it lives as long as an array over it."""
    length = -(-max(num_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    mapped = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = np.frombuffer(mapped, np.uint8)
    if sys.platform == "linux":
        mapped.madvise(mmap.MADV_HUGEPAGE)
        threading.Thread(target=_populate, args=(memory,), name="populate", daemon=True).start()
    return memory[:num_bytes]


def _populate(memory: np.ndarray) -> None:
    # What is written meanwhile stays. Through ctypes, because that lets other threads run.
    advise = ctypes.CDLL(None).madvise
    for first in range(0, len(memory), POPULATE_BYTES):
        length = min(POPULATE_BYTES, len(memory) - first)
        if advise(ctypes.c_void_p(memory.ctypes.data + first), ctypes.c_size_t(length), MADV_POPULATE_WRITE):
            return
