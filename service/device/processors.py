"""The processors that a start may keep busy."""

import os


def spare_processors() -> int:
    """Return how many there are besides the one for Python itself, at least 1.

    A start imports for most of its time, which Python's lock keeps to one thread. Whatever runs beside it on the last
    processor delays it, and with it everybody who waits for that lock.
    """
    return max(1, len(os.sched_getaffinity(0)) - 1) if hasattr(os, "sched_getaffinity") else 1
