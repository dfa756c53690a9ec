"""A small LRU cache of objects that models can share: executables and parsed tokenizers.

An executable receives the weights with each call, so models with the same bundle can share it, even concurrently.
"""

import threading

MAX_ENTRIES = 4  # some tens of megabytes each


class LruCache[Value]:
    """An LRU cache; safe to use from several threads."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._by_key: dict[str, Value] = {}  # least recently used first
        self._lock = threading.Lock()

    def get(self, key: str) -> Value | None:
        """Return a value, or None if it is not cached."""
        with self._lock:
            value = self._by_key.pop(key, None)
            if value is not None:
                self._by_key[key] = value
            return value

    def put(self, key: str, value: Value) -> None:
        """Store a value and evict the least recently used one if the cache is full."""
        with self._lock:
            self._by_key.pop(key, None)
            self._by_key[key] = value
            while len(self._by_key) > self._max_entries:
                del self._by_key[next(iter(self._by_key))]
