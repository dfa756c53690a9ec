"""A bound on the host memory of weights that wait for the device."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
