"""Control of glibc's heap."""

import ctypes


def return_freed_memory() -> None:
    """Return freed memory to the operating system; does nothing if the C library is not glibc.

    glibc retains free memory between used blocks, in one arena per concurrently allocating thread: tens of megabytes
    per model that was loaded and unloaded, and more than 100 MB after a start that compiled. A call takes a few
    milliseconds and releases the GIL.

    Source: https://man7.org/linux/man-pages/man3/malloc_trim.3.html
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
