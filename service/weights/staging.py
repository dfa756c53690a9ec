"""How much of the host's memory weights may take on their way to the device."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# How often a thread that waits looks whether the pull was cancelled or is out of time.
CHECK_INTERVAL_S = 0.2


class Staging:
    """A bound that threads share: who needs more than is left waits, unless nobody is under way who could free some."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._num_under_way = 0
        self._changed = threading.Condition()

    @contextmanager
    def admitted(self, num_bytes: int, check: Callable[[], None]) -> Iterator[None]:
        """Be under way during the body; the bytes are held until `give_back`, which may be much later.

        Args:
            num_bytes: how much of the host's memory the body takes.
            check: called while waiting; what it raises ends the waiting.
        """
        with self._changed:
            while self._num_under_way and self._held_bytes + num_bytes > self._max_bytes and num_bytes:
                self._changed.wait(CHECK_INTERVAL_S)
                check()
            self._held_bytes += num_bytes
            self._num_under_way += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_under_way -= 1
                self._changed.notify_all()

    def give_back(self, num_bytes: int) -> None:
        """Free bytes that were held."""
        with self._changed:
            self._held_bytes -= num_bytes
            self._changed.notify_all()
