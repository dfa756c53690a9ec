"""Keep what a later model takes over from earlier ones: the executables of one geometry, the parsed tokenizer.

An executable takes the weights with each call, so models that need the same bundle can call the same ones, at once too.
"""

import threading

# Kept after their last model was unloaded: some tens of megabytes each.
MAX_KEPT = 4


class Shared[Value]:
    """Values that were used last, by key; safe to use from several threads."""

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._by_key: dict[str, Value] = {}  # the one that was used last comes last
        self._lock = threading.Lock()

    def find(self, key: str) -> Value | None:
        """Return a value; None if it was not used lately."""
        with self._lock:
            found = self._by_key.pop(key, None)
            if found is not None:
                self._by_key[key] = found
            return found

    def keep(self, key: str, value: Value) -> None:
        """Keep a value, and let go of what was used least recently."""
        with self._lock:
            self._by_key.pop(key, None)
            self._by_key[key] = value
            while len(self._by_key) > self._max_kept:
                del self._by_key[next(iter(self._by_key))]
