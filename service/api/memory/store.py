"""Responses that are kept, each as one object that only the API key that made it can name.

OWNER/ID           the response, a line of JSON; then the items that it was made from, another; compressed
claims/OWNER/ID    held by the process that makes a response in the background

An object holds the whole conversation up to its response. So a turn reads one object, however many came before it, and
an old response can end without breaking those that follow it. Repeated text compresses to little.

Several processes share a store, and the state of a response only moves forward, whoever changes it:

queued ─> in_progress ─> completed, incomplete, failed or cancelled ─> deleted
  └──────────────────────────^

What was deleted leaves a tombstone, so that a write which comes late finds it. A response that is not complete and that
no process has claimed is lost, and fails; no clock decides that.
"""

import asyncio
import contextlib
import gzip
import logging
import re
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from pydantic_core import from_json, to_json

from service.api.answers.responses import ResponseError, ResponseObject, ResponseStatus
from service.errors import CheckpointError, ResponsesUnavailable
from service.storage.ages import CLOCK_JUMP_S, expiry_time
from service.storage.store import Claim, ObjectStore

logger = logging.getLogger(__name__)

ID_PREFIX = "resp_"
TIME_DIGITS = 12  # of an id, in hexadecimal: the Unix time in milliseconds of its creation
RESPONSE_ID = re.compile(r"resp_[0-9a-f]{12}[0-9a-f]{32}")
OBJECT_NAME = re.compile(rf"[^/]+/{RESPONSE_ID.pattern}")
CLAIMS = "claims/"
# A store that takes longer counts as one that has failed.
STORE_TIMEOUT_S = 10.0
MAX_THREADS = 16
# Between two looks for responses whose time is over.
SWEEP_INTERVAL_S = 3600.0
# The store is swept once a process has written this part of what all may take; then the oldest responses go until
# so much is left.
SWEEP_PART, ROOM_PART = 1 / 16, 9 / 10
UNFINISHED = ("queued", "in_progress")
DELETED = "deleted"
TOMBSTONE = gzip.compress(to_json({"status": DELETED}) + b"\n", compresslevel=1, mtime=0)
# Why a response failed whose process did not live to say so.
LOST: ResponseError = {
    "code": "server_error",
    "message": "The instance that worked on the response has ended. Send it again.",
}
FAILURES = (OSError, EOFError, ValueError, zlib.error, CheckpointError)  # a damaged object is one too


class Kept(NamedTuple):
    """A response that was kept."""

    response: ResponseObject
    items: bytes  # that it was made from, a JSON array

    @property
    def conversation(self) -> bytes:
        """The items, and after them those of the answer: a JSON array."""
        output = to_json(self.response["output"])
        return b"[" + b",".join(part for part in (self.items[1:-1], output[1:-1]) if part) + b"]"


@dataclass(eq=False)
class LiveResponse:
    """A response that this process is making."""

    owner: str
    id: str
    is_deleted: bool = False
    must_end: asyncio.Event = field(default_factory=asyncio.Event)  # set when it is cancelled
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)
    # Returns what it has so far, in another status if stated; there once others find it.
    document: Callable[[ResponseStatus | None], ResponseObject] = field(init=False)

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

    async def read(self, owner: str, response_id: str) -> Kept | None:
        """Return a response; None if it is not there, or another owner's, for which the store is asked the same.

        Raises:
            ResponsesUnavailable: the store failed.
        """
        if not RESPONSE_ID.fullmatch(response_id):
            return None
        name, is_ours = f"{owner}/{response_id}", (owner, response_id) in self.live
        kept = await self._run(lambda: _unpacked(self._store.read(name)) if is_ours else self._settled(name))
        return None if kept is None or self._is_over(response_id) else kept

    async def write(self, owner: str, response: ResponseObject, items: bytes, *, is_new: bool = True) -> Kept | None:
        """Keep a response, or the next state of one; return what is kept now, None if that was deleted.

        Args:
            owner: whose response it is.
            response: what is to be kept.
            items: that it was made from, packed.
            is_new: whether nothing of it has been kept before.

        Raises:
            ResponsesUnavailable: the store failed.
        """

        def write() -> tuple[Kept | None, int]:
            content = gzip.compress(to_json(response) + b"\n", compresslevel=1, mtime=0) + items
            if len(content) > self._max_bytes:
                raise OSError(f"the response takes {len(content)} bytes, and all together may take {self._max_bytes}")
            name = f"{owner}/{response['id']}"
            if is_new and self._store.write(name, content, replaces=False):
                return Kept(response, b""), len(content)
            change = partial(_next, content=content, status=response["status"])
            return _unpacked(self._store.update(name, change)), len(content)

        kept, num_bytes = await self._run(write)
        self._room_bytes -= num_bytes
        self._sweep_if_due()
        return kept

    async def cancel(self, owner: str, response_id: str, document: ResponseObject | None) -> ResponseObject | None:
        """Cancel a response unless it has ended; return what is kept now, None if there is nothing.

        Args:
            owner: whose response it is.
            response_id: which one.
            document: the cancelled response with what it has; None for what is kept of it.

        Raises:
            ResponsesUnavailable: the store failed.
        """

        def change(content: bytes | None) -> bytes | None:
            if (kept := _unpacked(content)) is None:
                return None
            cancelled: ResponseObject = document or {**kept.response, "status": "cancelled"}
            return _next(content, content=_packed(cancelled, kept.items), status="cancelled")

        kept = await self._run(lambda: _unpacked(self._store.update(f"{owner}/{response_id}", change)))
        return None if kept is None else kept.response

    async def delete(self, owner: str, response_id: str) -> None:
        """Delete a response, also one that is written only later.

        Raises:
            ResponsesUnavailable: the store failed.
        """
        change = partial(_next, content=TOMBSTONE, status=DELETED)
        await self._run(lambda: self._store.update(f"{owner}/{response_id}", change))

    async def claim(self, owner: str, response_id: str) -> Claim:
        """Claim a new response, which fails once the claim has ended and it is not complete.

        Raises:
            ResponsesUnavailable: the store failed.
        """
        claim = await self._run(lambda: self._store.claim(f"{owner}/{response_id}"))
        assert claim is not None, "ids are random"
        return claim

    async def renew(self, claim: Claim) -> None:
        """Extend a claim. One that was lost is no error: whoever took it has failed the response."""
        with contextlib.suppress(ResponsesUnavailable):
            await self._run(claim.renew)

    async def release(self, claim: Claim) -> None:
        """Give up a claim; one that cannot be given up ends by itself."""
        with contextlib.suppress(ResponsesUnavailable):
            await self._run(claim.release)

    async def _run_unchecked[T](self, work: Callable[[], T]) -> T:
        """Return the result of work in one of the store's threads; raises what it raises, and TimeoutError."""
        async with asyncio.timeout(STORE_TIMEOUT_S):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _run[T](self, work: Callable[[], T]) -> T:
        try:
            return await self._run_unchecked(work)
        except FAILURES as error:
            logger.error("responses cannot be read or written", exc_info=error)
            raise ResponsesUnavailable from error

    def _settled(self, name: str) -> Kept | None:
        """Return a response; one whose process has ended before it was complete fails now."""
        kept = _unpacked(self._store.read(name))
        if kept is None or kept.response["status"] not in UNFINISHED or (claim := self._store.claim(name)) is None:
            return kept
        try:
            return _unpacked(self._store.update(name, _lost))
        finally:
            claim.release()

    def _is_over(self, response_id: str) -> bool:
        """Return whether a response's time is over, also if the clock that its id is from was behind."""
        created_s = int(response_id[len(ID_PREFIX) :][:TIME_DIGITS], 16) / 1000
        return created_s + self._lifetime_s + CLOCK_JUMP_S < expiry_time()

    def _sweep_if_due(self) -> None:
        is_due = self._room_bytes < 0 or time.monotonic() > self._next_sweep_s
        if is_due and (self.sweeping is None or self.sweeping.done()):
            self.sweeping = asyncio.get_running_loop().create_task(self.sweep())

    async def sweep(self) -> None:
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
        self._store.sweep()
        names = self._store.list("")
        for name in names:
            if name.startswith(CLAIMS) and RESPONSE_ID.fullmatch(_id_of(name)):
                self._end_claim(name.removeprefix(CLAIMS))
        sizes = {name: size for name, size in names.items() if OBJECT_NAME.fullmatch(name)}
        total = sum(sizes.values())
        limit = self._max_bytes if total <= self._max_bytes else int(self._max_bytes * ROOM_PART)
        for name in sorted(sizes, key=_id_of):
            if total <= limit and not self._is_over(_id_of(name)):
                break
            self._store.delete(name)
            total -= sizes[name]
        return self._max_bytes - total

    def _end_claim(self, name: str) -> None:
        """Delete the claim of a process that was killed, and fail what it has left."""
        if (claim := self._store.claim(name)) is None:
            return
        try:
            self._store.update(name, _lost)
        finally:
            claim.release()


def _id_of(name: str) -> str:
    return name.rpartition("/")[2]


def _packed(response: ResponseObject, items: bytes) -> bytes:
    return gzip.compress(to_json(response) + b"\n" + items, compresslevel=1, mtime=0)


def _unpacked(content: bytes | None) -> Kept | None:
    """Return a response as it is stored; None if there is none, or it was deleted."""
    if content is None or content == TOMBSTONE:
        return None
    response, _, items = gzip.decompress(content).partition(b"\n")
    return Kept(from_json(response), items)


def _next(present: bytes | None, *, content: bytes, status: str) -> bytes | None:
    """Return the next state of a response; None if it would go back.

    Only a tombstone comes where there is nothing, since what is gone was deleted.
    """
    if status == DELETED:
        return None if present == content else content
    kept = _unpacked(present)
    # Defends against T46.
    if kept is None or _order(kept.response["status"]) >= _order(status):
        return None
    return content


def _order(status: str) -> int:
    """Return how far a response has come."""
    return UNFINISHED.index(status) if status in UNFINISHED else len(UNFINISHED)


def _lost(present: bytes | None) -> bytes | None:
    """Fail a response that is not complete."""
    if (kept := _unpacked(present)) is None or kept.response["status"] not in UNFINISHED:
        return None
    return _packed({**kept.response, "status": "failed", "error": LOST}, kept.items)
