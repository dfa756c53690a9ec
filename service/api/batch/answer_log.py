"""The answers of a batch so far, in parts that are written every few seconds, so that a kill costs no more than these.

A bucket cannot append to an object, so each part is one of its own.
"""

import json
from collections.abc import Iterator
from typing import Any

from service.api.batch.names import new_id
from service.storage.store import ObjectStore


class AnswerLog:
    """The log of one batch."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._folder = f"{folder}/answers"
        self._pending: list[bytes] = []

    def load(self) -> Iterator[dict[str, Any]]:
        """Yield the answers of all parts."""
        for name in self._store.list(self._folder):
            for line in (self._store.read(name) or b"").splitlines():
                yield json.loads(line)

    def add(self, answer: dict[str, Any]) -> None:
        """Add an answer, which `take` writes."""
        self._pending.append(json.dumps(answer, ensure_ascii=False).encode() + b"\n")

    def take(self) -> list[bytes]:
        """Return the answers that no part has, to be written next."""
        taken, self._pending = self._pending, []
        return taken

    def give_back(self, lines: list[bytes]) -> None:
        """Return answers that could not be written, or that may not have been; a reader takes the first of each."""
        self._pending = lines + self._pending

    def write(self, lines: list[bytes]) -> None:
        """Write a part; blocks. No two processes write one part, even if both believe that the batch is theirs."""
        if lines:
            self._store.write(f"{self._folder}/{new_id('')}.jsonl", b"".join(lines))
