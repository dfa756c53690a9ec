"""Executables that models of one geometry share, so that a later one loads and compiles none.

An executable takes the weights with each call, so models that need the same bundle can call the same ones, at once too.
"""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.compile.program import Executable

# Bundles whose executables stay in memory after their last model was unloaded: some tens of megabytes each.
MAX_BUNDLES = 4


class SharedExecutables:
    """The executables of the bundles that this process used last; safe to use from several threads."""

    def __init__(self, max_bundles: int = MAX_BUNDLES) -> None:
        self._max_bundles = max_bundles
        self._by_key: dict[str, Mapping[str, Executable]] = {}  # the one that was used last comes last
        self._lock = threading.Lock()

    def find(self, key: str) -> "Mapping[str, Executable] | None":
        """Return the executables of a bundle, by name; None if it was not used lately."""
        with self._lock:
            found = self._by_key.pop(key, None)
            if found is not None:
                self._by_key[key] = found
            return found

    def keep(self, key: str, executables: "Mapping[str, Executable]") -> None:
        """Keep the executables of a bundle, all of which are there, and let go of what was used least recently."""
        with self._lock:
            self._by_key.pop(key, None)
            self._by_key[key] = executables
            while len(self._by_key) > self._max_bundles:
                del self._by_key[next(iter(self._by_key))]
