"""The heap of this process, as glibc keeps it."""

import ctypes


def return_freed_memory() -> None:
    """Return freed memory to the system; does nothing where the C library is not glibc.

    glibc keeps what lies between blocks that are in use, in as many arenas as threads have allocated in at once: tens
    of megabytes of each model that was loaded and unloaded, and more than 100 after a start that compiled. A call takes
    some milliseconds, without the GIL.

    Source: https://man7.org/linux/man-pages/man3/malloc_trim.3.html
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
