"""Memory of the host for arrays that XLA takes over; the kernel gets it ready while the first bytes are coming."""

import ctypes
import sys
import threading

import numpy as np

# XLA takes over an array of the host without a copy if it begins at a multiple of this.
ALIGNMENT_BYTES = 64
# Source: man 2 madvise; since Linux 5.14, and an error that does no harm before.
MADV_POPULATE_WRITE = 23
STEP_BYTES = 32 * 1024 * 1024
PAGE_BYTES = 4096


def fresh_bytes(num_bytes: int) -> np.ndarray:
    """Return memory that begins where XLA wants an array to begin; its pages become real in the background, in order.

    Threads that touch a fresh huge page at the same time each clear one, all but one of them in vain; and they would
    do so while bytes wait for them.
    """
    memory = np.empty(num_bytes + ALIGNMENT_BYTES, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT_BYTES
    if sys.platform == "linux":
        threading.Thread(target=_populate, args=(memory,), name="populate", daemon=True).start()
    return memory[begin : begin + num_bytes]


def _populate(memory: np.ndarray) -> None:
    # What is written meanwhile stays. Through ctypes, because that lets other threads run.
    libc = ctypes.CDLL(None)
    end = memory.ctypes.data + memory.nbytes
    for address in range(-(-memory.ctypes.data // PAGE_BYTES) * PAGE_BYTES, end, STEP_BYTES):
        length = min(STEP_BYTES, (end - address) // PAGE_BYTES * PAGE_BYTES)
        if length and libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), MADV_POPULATE_WRITE):
            return
