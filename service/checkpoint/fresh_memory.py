"""The host's memory for weights that XLA takes over, asked for before it is known how much of it they need.

To get fresh pages ready takes the kernel longer than to fill them, above all where the host of a virtual machine has
taken them back; so that begins while jax is still being imported and a processor has nothing else to do.
"""

import contextlib
import ctypes
import mmap
import sys
import threading

import numpy as np

# XLA takes over an array of the host without a copy if it begins at a multiple of this.
ALIGNMENT_BYTES = 64
# What is asked for may turn out to be too little, as with bfloat16 that is served as float32; addresses cost nothing.
ADDRESSES_PER_BYTE = 2
# Source: man 2 madvise; since Linux 5.14, and an error that does no harm before.
MADV_POPULATE_WRITE = 23
POPULATE_BYTES = 32 * 1024 * 1024
# Of which one page after the other is touched, without Python's lock; who takes the memory waits so long at most.
TOUCH_BYTES = 16 * 1024 * 1024


class FreshMemory:
    """One piece of memory whose pages become real in the background, in order, in huge pages where there are any.

    Threads that touch a fresh huge page at the same time each clear one, all but one of them in vain; and they would
    do so while bytes wait for them.
    """

    def __init__(self, likely_bytes: int = 0) -> None:
        """Begin to get memory ready, if it is known how much will likely be taken."""
        self._lock = threading.Lock()
        self._piece: _Piece | None = None
        if likely_bytes:
            with contextlib.suppress(OSError):  # a kernel that promises no more than it has; less may be enough
                self._piece = _Piece(likely_bytes * ADDRESSES_PER_BYTE, likely_bytes)

    def take(self, num_bytes: int) -> np.ndarray:
        """Return so much memory: what was got ready, for the first to ask; it lives as long as an array over it."""
        with self._lock:
            piece, self._piece = self._piece, None
        if piece is not None and num_bytes <= len(piece.memory):
            return piece.take(num_bytes)
        if piece is not None:
            piece.take(0)
        return _Piece(num_bytes).take(num_bytes)

    def give_back(self) -> None:
        """Let go of what nobody took."""
        with self._lock:
            piece, self._piece = self._piece, None
        if piece is not None:
            piece.take(0)


class _Piece:
    """Addresses, and a thread that puts memory behind the first of them."""

    def __init__(self, num_bytes: int, likely_bytes: int = 0) -> None:
        self._map = mmap.mmap(-1, _whole_pages(max(num_bytes, 1)), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if sys.platform == "linux":
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.memory = np.frombuffer(self._map, np.uint8)
        self._likely_bytes = likely_bytes
        self._ready_bytes = 0
        self._lock = threading.Lock()  # held while pages are touched
        self._is_taken = False
        if likely_bytes:
            threading.Thread(target=self._touch_likely, name="touch", daemon=True).start()

    def take(self, num_bytes: int) -> np.ndarray:
        """End the guessing: return what is needed, of which the rest is got ready while the first part is in use."""
        with self._lock:
            self._is_taken = True
        needed_bytes = _whole_pages(num_bytes)
        if sys.platform == "linux":
            if needed_bytes < self._ready_bytes:
                self._map.madvise(mmap.MADV_DONTNEED, needed_bytes, self._ready_bytes - needed_bytes)
            else:
                arguments = (self.memory, self._ready_bytes, needed_bytes)
                threading.Thread(target=_populate, args=arguments, name="populate", daemon=True).start()
        return self.memory[:num_bytes]

    def _touch_likely(self) -> None:
        # A fault keeps no other thread from asking for addresses, as an import does all the time; `_populate` does.
        for begin in range(0, self._likely_bytes, TOUCH_BYTES):
            with self._lock:
                if self._is_taken:
                    return
                end = min(begin + TOUCH_BYTES, self._likely_bytes)
                self.memory[begin : end : mmap.PAGESIZE] = 0
                self._ready_bytes = _whole_pages(end)


def _populate(memory: np.ndarray, begin: int, end: int) -> None:
    # What is written meanwhile stays, unlike with a touch. Through ctypes, because that lets other threads run.
    advise = ctypes.CDLL(None).madvise
    for first in range(begin, end, POPULATE_BYTES):
        length = min(POPULATE_BYTES, end - first)
        if advise(ctypes.c_void_p(memory.ctypes.data + first), ctypes.c_size_t(length), MADV_POPULATE_WRITE):
            return


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
