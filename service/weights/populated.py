"""Host memory whose pages a background thread makes, in huge pages if there are any.

Faulting fresh pages in takes longer than filling them, above all if the host of a virtual machine has reclaimed them;
and threads faulting on the same huge page each zero a page, of which all but one is discarded.
"""

import ctypes
import mmap
import sys
import threading
from collections.abc import Callable

import numpy as np

# Source: man 2 madvise; since Linux 5.14, and a harmless error before.
MADV_POPULATE_WRITE = 23
# While the kernel populates this much, threads that change the address space, as imports do, have to wait.
POPULATE_BYTES = 2 * 1024 * 1024


def populated_memory(num_bytes: int, then: Callable[[np.ndarray], None] | None = None) -> np.ndarray:
    """Allocate uint8 of shape [num_bytes], aligned to a page.

    Args:
        num_bytes: the size.
        then: called by the background thread once all pages are there.
    """
    length = -(-max(num_bytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    mapped = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory = np.frombuffer(mapped, np.uint8)
    if sys.platform == "linux":
        mapped.madvise(mmap.MADV_HUGEPAGE)
        threading.Thread(target=_populate, args=(memory, then), name="populate", daemon=True).start()
    return memory[:num_bytes]


def _populate(memory: np.ndarray, then: Callable[[np.ndarray], None] | None) -> None:
    # Bytes that other threads write meanwhile are preserved. A call through ctypes releases the GIL.
    advise = ctypes.CDLL(None).madvise
    for first in range(0, len(memory), POPULATE_BYTES):
        length = min(POPULATE_BYTES, len(memory) - first)
        if advise(ctypes.c_void_p(memory.ctypes.data + first), ctypes.c_size_t(length), MADV_POPULATE_WRITE):
            break
    if then is not None:
        then(memory)
