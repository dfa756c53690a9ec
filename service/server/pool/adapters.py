"""Adapters in the host's memory: read once, and dropped when others need the memory, least recently used first.

Requests that use an adapter hold it, so that it may be dropped at any time. Belongs to the event loop.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from service.catalogue.entry import ModelEntry
from service.engine.request import Adapter
from service.errors import CheckpointError, ModelLoadFailed, Overloaded, ServiceError

logger = logging.getLogger(__name__)

NUM_READERS = 4
# How long to wait before reading an adapter again that was refused.
RETRY_AFTER_S = 10
MAX_FAILURES = 1000  # adapters of which it is remembered why they were not loaded


class HostAdapters:
    """The adapters of a process, by the version of the adapter and of its base model."""

    def __init__(self, max_bytes: int, max_loading: int) -> None:
        """Begin without adapters.

        Args:
            max_bytes: of all adapters that are kept; at least one is.
            max_loading: adapters that may be read, or wait to be read, at a time.
        """
        self._max_bytes, self._max_loading = max_bytes, max_loading
        self._adapters: dict[str, Adapter] = {}  # least recently used first
        self._loading: dict[str, asyncio.Task[Adapter]] = {}
        self._failed: dict[str, tuple[float, str, str | None]] = {}  # when, why, and what clients see
        self._pool = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="adapter")
        self.num_bytes = 0

    def find(self, entry: ModelEntry) -> Adapter | None:
        """Return an adapter that is here; None if it has to be read."""
        adapter = self._adapters.pop(key := _key(entry), None)
        if adapter is not None:
            self._adapters[key] = adapter
        return adapter

    def is_here(self, entry: ModelEntry) -> bool:
        """Return whether an adapter need not be read."""
        return _key(entry) in self._adapters

    def error_of(self, entry: ModelEntry) -> str | None:
        """Return why an adapter was refused when it was last read, without paths; None if it was not."""
        return self._failed.get(_key(entry), (0.0, "", None))[2]

    async def get(self, entry: ModelEntry, read: Callable[[str, str], Adapter]) -> Adapter:
        """Return an adapter, reading it if necessary; concurrent requests share one read.

        Args:
            entry: the adapter's entry in the catalogue.
            read: reads an adapter by its name and address; called on a thread.

        Raises:
            ModelLoadFailed: the adapter is refused or cannot be read, or could not be within `RETRY_AFTER_S`.
            Overloaded: too many other adapters are being read.
        """
        if (adapter := self.find(entry)) is not None:
            return adapter
        key = _key(entry)
        failed_s, reason, shown = self._failed.get(key, (float("-inf"), "", None))
        if time.monotonic() - failed_s < RETRY_AFTER_S:
            raise ModelLoadFailed(entry.name, reason, shown)
        if key not in self._loading:
            if len(self._loading) >= self._max_loading:
                raise Overloaded(running=len(self._loading), limit=self._max_loading)
            self._loading[key] = asyncio.get_running_loop().create_task(self._read(key, entry, read))
        return await asyncio.shield(self._loading[key])

    def forget(self, entry: ModelEntry) -> bool:
        """Drop an adapter, and why it was refused; return whether it was here."""
        key = _key(entry)
        self._failed.pop(key, None)
        return self._drop(key)

    def close(self) -> None:
        """End the readings that have not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _read(self, key: str, entry: ModelEntry, read: Callable[[str, str], Adapter]) -> Adapter:
        loop = asyncio.get_running_loop()
        assert entry.adapter_uri is not None, "the entry of an adapter has its address"
        try:
            adapter = await loop.run_in_executor(self._pool, read, entry.name, entry.adapter_uri)
        except (ServiceError, OSError, MemoryError) as error:
            logger.warning("an adapter was not loaded", extra={"adapter": entry.name, "reason": str(error)})
            shown = error.shown if isinstance(error, CheckpointError) else None
            self._failed.pop(key, None)
            self._failed[key] = time.monotonic(), str(error), shown
            if len(self._failed) > MAX_FAILURES:
                del self._failed[next(iter(self._failed))]
            raise ModelLoadFailed(entry.name, str(error), shown) from error
        finally:
            del self._loading[key]
        self._failed.pop(key, None)
        self._adapters[key] = adapter
        self.num_bytes += adapter.num_bytes
        for other in list(self._adapters):
            if self.num_bytes <= self._max_bytes or other == key:
                break
            self._drop(other)
        return adapter

    def _drop(self, key: str) -> bool:
        adapter = self._adapters.pop(key, None)
        self.num_bytes -= 0 if adapter is None else adapter.num_bytes
        return adapter is not None


def _key(entry: ModelEntry) -> str:
    return f"{entry.address} {entry.version}"
