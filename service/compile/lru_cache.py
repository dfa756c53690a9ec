"""A small LRU cache of objects that models or requests can share: executables, parsed tokenizers, decoded images.

An executable receives the weights with each call, so models with the same bundle can share it, even concurrently.
"""

import threading
from collections.abc import Callable, Hashable
from typing import Any

MAX_ENTRIES = 4  # some tens of megabytes each


def _one(value: object) -> int:
    return 1


class LruCache[Value]:
    """An LRU cache; safe to use from several threads."""

    def __init__(self, max_size: int = MAX_ENTRIES, size_of: Callable[[Any], int] = _one) -> None:
        """Begin empty.

        Args:
            max_size: the largest sum of the values' sizes.
            size_of: returns the size of a value; by default values are counted.
        """
        self._max_size, self._size_of = max_size, size_of
        self._by_key: dict[Hashable, Value] = {}  # least recently used first
        self.size = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Value | None:
        """Return a value, or None if it is not cached."""
        with self._lock:
            value = self._by_key.pop(key, None)
            if value is not None:
                self._by_key[key] = value
            return value

    def put(self, key: Hashable, value: Value) -> None:
        """Store a value and evict the least recently used ones until there is room; a value too large is not stored."""
        with self._lock:
            if key in self._by_key:
                self._evict(key)
            if (size := self._size_of(value)) > self._max_size:
                return
            self._by_key[key] = value
            self.size += size
            while self.size > self._max_size:
                self._evict(next(iter(self._by_key)))

    def _evict(self, key: Hashable) -> None:
        self.size -= self._size_of(self._by_key.pop(key))
