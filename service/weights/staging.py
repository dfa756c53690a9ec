"""A limit on the host memory of weights that wait for the device."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CHECK_INTERVAL_S = 0.2  # between a waiting thread's checks for cancellation and the deadline


class HostMemoryBudget:
    """A limit on staged bytes, shared by threads: a thread that needs more than is left waits for the others."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._num_at_work = 0
        self._changed = threading.Condition()

    @contextmanager
    def reserve(self, num_bytes: int, check: Callable[[], None]) -> Iterator[None]:
        """Reserve bytes from the start of the body until `release`, which may be called much later.

        A reservation larger than the limit is granted when no other body is running that could release bytes.

        Args:
            num_bytes: the host memory that the body needs.
            check: called while waiting; raises to end the wait.
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

    def release(self, num_bytes: int) -> None:
        with self._changed:
            self._held_bytes -= num_bytes
            self._changed.notify_all()
