"""Responses that are kept, each as one object that only the API key that made it can name.

OWNER/ID    the response, a line of JSON; then the items that it was made from, another; compressed

An object holds the whole conversation up to its response. So a turn reads one object, however many came before it, and
an old response can end without breaking those that follow it. Repeated text compresses to little.
"""

import asyncio
import gzip
import logging
import re
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from service.errors import CheckpointError, ResponsesUnavailable
from service.storage.store import ObjectStore

logger = logging.getLogger(__name__)

ID_PREFIX = "resp_"
TIME_DIGITS = 12  # of an id, in hexadecimal: the Unix time in milliseconds of its creation
RESPONSE_ID = re.compile(r"resp_[0-9a-f]{12}[0-9a-f]{32}")
# A store that takes longer counts as one that has failed.
STORE_TIMEOUT_S = 10.0
MAX_THREADS = 16
# Between two looks for responses whose time is over.
SWEEP_INTERVAL_S = 3600.0
# The store is swept once a process has written this part of what all may take; then the oldest responses go until
# so much is left.
SWEEP_PART, ROOM_PART = 1 / 16, 9 / 10
# Of a response in the background beyond REQUEST_TIMEOUT, until its process counts as gone.
GRACE_S = 30.0
UNFINISHED = frozenset({"queued", "in_progress"})
FAILURES = (OSError, EOFError, ValueError, zlib.error, CheckpointError)  # a damaged object is one too


class Kept(NamedTuple):
    """A response that was kept."""

    response: dict[str, Any]
    items: bytes  # that it was made from, a JSON array

    @property
    def conversation(self) -> bytes:
        """The items, and after them those of the answer: a JSON array."""
        output = to_json(self.response["output"])
        return b"[" + b",".join(part for part in (self.items[1:-1], output[1:-1]) if part) + b"]"

    @property
    def packed_items(self) -> bytes:
        """The items as an object has them."""
        return gzip.compress(self.items, compresslevel=1, mtime=0)


@dataclass(eq=False)
class LiveResponse:
    """A response that this process is making."""

    owner: str
    id: str
    is_deleted: bool = False
    must_end: asyncio.Event = field(default_factory=asyncio.Event)  # set when it is cancelled
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)
    document: Callable[[], dict[str, Any]] = dict  # returns what it has so far

    def delete(self) -> None:
        """Keep it no longer; one in the background ends, one that is sent goes on."""
        self.is_deleted = True
        self.must_end.set()


def new_id_prefix() -> str:
    """Return the beginning of a response's id, before its 128 random bits; ids sort by the time of their creation."""
    return f"{ID_PREFIX}{time.time_ns() // 1_000_000:0{TIME_DIGITS}x}"


class ResponseStore:
    """All responses that are kept; belongs to the event loop, and works in threads of its own."""

    def __init__(self, store: ObjectStore, *, lifetime_s: float, max_bytes: int, max_conversation_bytes: int) -> None:
        """Use a store.

        Args:
            store: holds the objects.
            lifetime_s: a response ends so long after its creation.
            max_bytes: the bound on all objects together; the oldest ones make room for new ones.
            max_conversation_bytes: the bound on a stored conversation and the request that continues it.
        """
        self.uri = store.uri
        self.live: dict[tuple[str, str], LiveResponse] = {}  # by owner and id
        self.max_conversation_bytes = max_conversation_bytes
        self._store, self._lifetime_s, self._max_bytes = store, lifetime_s, max_bytes
        # A place that hangs must not take the threads of others.
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="responses")
        self._room_bytes = 0  # that this process may write until the next sweep
        self._next_sweep_s = 0.0
        self.sweeping: asyncio.Task[None] | None = None  # the deletion of old responses, the latest one

    async def _run_unchecked[T](self, work: Callable[[], T]) -> T:
        """Return the result of work in one of the store's threads; raises what it raises, and TimeoutError."""
        async with asyncio.timeout(STORE_TIMEOUT_S):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def read(self, owner: str, response_id: str) -> Kept | None:
        """Return a response; None if it is not there, or another owner's, for which the store is asked the same.

        Raises:
            ResponsesUnavailable: the store failed.
        """
        if not RESPONSE_ID.fullmatch(response_id):
            return None
        kept = await self._run(lambda: self._read(f"{owner}/{response_id}"))
        return None if kept is None or self._is_over(response_id) else kept

    async def write(self, owner: str, response: dict[str, Any], items: bytes) -> bool:
        """Keep a response with the packed items that it was made from; return whether that succeeded."""
        response_id = response["id"]

        def write() -> int:
            content = gzip.compress(to_json(response) + b"\n", compresslevel=1, mtime=0) + items
            if len(content) > self._max_bytes:
                raise OSError(f"the response takes {len(content)} bytes, and all together may take {self._max_bytes}")
            self._store.write(f"{owner}/{response_id}", content)
            return len(content)

        try:
            self._room_bytes -= await self._run_unchecked(write)
        except FAILURES as error:
            logger.error("a response is not kept", extra={"response_id": response_id}, exc_info=error)
            return False
        self._sweep_if_due()
        return True

    async def delete(self, owner: str, response_id: str) -> None:
        """Delete a response; does nothing if it is not there.

        Raises:
            ResponsesUnavailable: the store failed.
        """
        await self._run(lambda: self._store.delete(f"{owner}/{response_id}"))

    async def _run[T](self, work: Callable[[], T]) -> T:
        try:
            return await self._run_unchecked(work)
        except FAILURES as error:
            logger.error("responses cannot be read or written", exc_info=error)
            raise ResponsesUnavailable from error

    def _read(self, name: str) -> Kept | None:
        if (content := self._store.read(name)) is None:
            return None
        response, _, items = gzip.decompress(content).partition(b"\n")
        return Kept(from_json(response), items)

    def _is_over(self, response_id: str) -> bool:
        created_s = int(response_id[len(ID_PREFIX) :][:TIME_DIGITS], 16) / 1000
        return created_s + self._lifetime_s < time.time()

    def _sweep_if_due(self) -> None:
        is_due = self._room_bytes < 0 or time.monotonic() > self._next_sweep_s
        if is_due and (self.sweeping is None or self.sweeping.done()):
            self.sweeping = asyncio.get_running_loop().create_task(self._sweep())

    async def _sweep(self) -> None:
        """Delete what is over and what is too much, while requests go on."""
        self._next_sweep_s = time.monotonic() + SWEEP_INTERVAL_S
        before = self._room_bytes
        try:
            free_bytes = await asyncio.get_running_loop().run_in_executor(self._threads, self._delete_old)
        except FAILURES as error:
            logger.error("old responses cannot be deleted", exc_info=error)
            free_bytes = self._max_bytes
        # Less what was written meanwhile.
        self._room_bytes += min(free_bytes, int(self._max_bytes * SWEEP_PART)) - before

    def _delete_old(self) -> int:
        """Delete responses whose time is over, and then the oldest ones if there is too much; return what is free."""
        sizes = {name: size for name, size in self._store.list("").items() if RESPONSE_ID.fullmatch(_id_of(name))}
        total = sum(sizes.values())
        limit = self._max_bytes if total <= self._max_bytes else int(self._max_bytes * ROOM_PART)
        for name in sorted(sizes, key=_id_of):
            if total <= limit and not self._is_over(_id_of(name)):
                break
            self._store.delete(name)
            total -= sizes[name]
        return self._max_bytes - total


def _id_of(name: str) -> str:
    return name.rpartition("/")[2]
