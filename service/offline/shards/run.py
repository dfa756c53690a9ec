"""The work of one process on a batch in shards.

It takes its own chunks first, one after another, then those of others from the end that they reach last. The next chunk
begins when all lines of the last one have begun, so that the device stays full. A process that is stopped keeps the
answers of its open chunks; one that is killed loses at most as many answers as a chunk has lines.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TextIO

import httpx
from starlette.types import ASGIApp

from service.api.batch.lines import BatchLine
from service.api.batch.requests import answers, as_background, client_of
from service.api.http.keys import OPEN_OWNER
from service.api.http.lines import single_line
from service.errors import ServiceError
from service.offline.batch import LINE_TIMEOUT_S, Tally, shown
from service.offline.shards.chunks import CHUNK_LINES, BatchInput, Chunk, ChunkLine
from service.offline.shards.parts import Parts
from service.settings.shard import Shard
from service.storage.store import Claim

logger = logging.getLogger(__name__)

RENEW_INTERVAL_S = 30.0
MAX_OPEN = 2  # chunks: one that ends and one that begins


class TooManyErrors(ServiceError):
    """More lines have no answer but an error than --max-error-rate allows."""

    def __init__(self, num_failed: int, num_lines: int, max_error_rate: float) -> None:
        super().__init__(
            f"{num_failed} of {num_lines} lines were answered with an error, more than --max-error-rate "
            f"{max_error_rate:g} allows. The answers so far are kept; correct the input, or allow more."
        )
        self.num_failed = num_failed
        self.num_lines = num_lines


@dataclass
class OpenChunk:
    """A chunk that this process answers."""

    chunk: Chunk
    claim: Claim
    lines: list[ChunkLine]
    rows: dict[int, bytes] = field(default_factory=dict)  # lines of the part, by the number of the line
    kept: set[int] = field(default_factory=set)  # the numbers of those that are stored already
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)  # set once all lines have
    storing: asyncio.Lock = field(default_factory=asyncio.Lock)  # answers are stored after one another
    has_part: bool = False  # nothing is kept of a chunk once it has

    def __post_init__(self) -> None:
        self._numbers = {line.request.custom_id: line.number for line in self.lines if line.request is not None}
        self.rows = {line.number: _row(line.refusal) for line in self.lines if line.request is None}

    def take_over(self, answer: dict[str, Any]) -> None:
        """Add an answer that an earlier process has kept."""
        if (number := self._numbers.get(answer["custom_id"])) is not None:
            self.add(answer)
            self.kept.add(number)

    def add(self, answer: dict[str, Any]) -> None:
        """Add an answer of a line."""
        self.rows[self._numbers[answer["custom_id"]]] = _row(answer)

    def todo(self) -> Iterator[BatchLine]:
        """Yield the requests without an answer, and note when the last one has begun."""
        for line in self.lines:
            if line.request is not None and line.number not in self.rows:
                yield line.request
        self.has_begun.set()

    @property
    def unsaved(self) -> set[int]:
        """The numbers of answered lines that a kill would lose."""
        return (self.rows.keys() & self._numbers.values()) - self.kept

    @property
    def part(self) -> list[bytes]:
        """The lines of the part, in the order of the input."""
        return [self.rows[line.number] for line in self.lines]


class ShardRun:
    """One run of one shard."""

    def __init__(
        self,
        api: ASGIApp,
        source: BatchInput,
        parts: Parts,
        *,
        shard: Shard,
        concurrency: int,
        max_error_rate: float = 1.0,
        out: TextIO | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            api: the ASGI app.
            source: the input.
            parts: the place of the answers.
            shard: which of how many this is.
            concurrency: the number of concurrent requests.
            max_error_rate: the share of lines that may have an error for an answer.
            out: the stream for progress; stdout by default.
        """
        self._api, self._source, self._parts, self._shard = api, source, parts, shard
        self._slots = asyncio.Semaphore(concurrency)
        self._max_error_rate, self._out = max_error_rate, out
        self._open: dict[int, OpenChunk] = {}
        self._taken: set[int] = set()  # the chunks of this run
        self._num_taken_over = 0
        self._tally = Tally(source.num_lines)

    async def run(self) -> Tally:
        """Answer chunks until none is left that no other process works on.

        If it fails or is cancelled, the answers of its open chunks are kept.

        Raises:
            TooManyErrors: it is certain that there will be.
            EngineStopped: the engine failed.
            BatchFileError, CheckpointError: the input or the place of the answers failed.
        """
        await self._look()
        self._tally.num_before = self._tally.num_earlier
        background = as_background(self._api, OPEN_OWNER, lambda: LINE_TIMEOUT_S)
        renewing = asyncio.create_task(self._renew_often())
        running: set[asyncio.Task[None]] = set()
        try:
            async with client_of(background) as client:
                with shown(self._tally, self._out):
                    while (opened := await self._take()) is not None or running:
                        if opened is not None:
                            running.add(asyncio.create_task(self._answer(client, opened)))
                        await self._wait_for_room(opened, running)
        finally:
            for task in (*running, renewing):
                task.cancel()
            await asyncio.gather(*running, renewing, return_exceptions=True)
        return self._tally

    async def _wait_for_room(self, opened: OpenChunk | None, running: set[asyncio.Task[None]]) -> None:
        """Wait until another chunk may begin, and remove the tasks that have ended."""
        begun: set[asyncio.Task[Any]] = set()
        if opened is not None and len(running) < MAX_OPEN:
            begun.add(asyncio.create_task(opened.has_begun.wait()))
        done, _ = await asyncio.wait(running | begun, return_when=asyncio.FIRST_COMPLETED)
        for task in begun:
            task.cancel()
        ended = running & done
        running -= ended
        for task in ended:
            task.result()

    async def _take(self) -> OpenChunk | None:
        """Claim a chunk and read it; None if enough are open, or the rest has a part or is worked on by others."""
        if len(self._open) >= MAX_OPEN:
            return None
        for number in self._in_order(await self._look()):
            if (opened := await self._claim(self._source.chunks[number])) is not None:
                return opened
        return None

    async def _claim(self, chunk: Chunk) -> OpenChunk | None:
        """Claim a chunk and read it; None if it has a part by now, or another process works on it."""
        claiming = asyncio.create_task(asyncio.to_thread(self._parts.claim, chunk, self._shard.name))
        try:
            if (claim := await asyncio.shield(claiming)) is None:
                return None
            if chunk.number in await self._look():
                await self._release(claim)
                return None
            opened = OpenChunk(chunk, claim, await asyncio.to_thread(self._source.lines, chunk))
            for answer in await asyncio.to_thread(lambda: list(self._parts.kept(chunk))):
                opened.take_over(answer)
        except BaseException:  # a cancellation does not stop the thread that claims
            if (claim := await claiming) is not None:
                await self._release(claim)
            raise
        self._open[chunk.number] = opened
        self._taken.add(chunk.number)
        self._num_taken_over += len(opened.kept)
        return opened

    async def _look(self) -> set[int]:
        """Return the chunks that have a part."""
        present = await asyncio.to_thread(self._parts.present)
        elsewhere = sum(self._source.chunks[number].num_lines for number in present - self._taken)
        self._tally.num_earlier = elsewhere + self._num_taken_over
        return present

    def _in_order(self, present: set[int]) -> list[int]:
        """Return the chunks without a part: the own ones first, then those that others reach last."""
        count = self._shard.count
        missing = [chunk.number for chunk in self._source.chunks if chunk.number not in present | self._open.keys()]
        left = Counter(number % count for number in missing)
        own = [number for number in missing if number % count == self._shard.index]
        others = [number for number in missing if number % count != self._shard.index]
        return own + sorted(others, key=lambda number: (-left[number % count], -number))

    async def _answer(self, client: httpx.AsyncClient, opened: OpenChunk) -> None:
        read_file = partial(self._source.read_beside, opened.chunk.file)
        try:
            for line in opened.lines:
                if line.request is None:
                    self._count(line.refusal)
            async with aclosing(answers(client, opened.todo(), self._slots, read_file)) as found:
                async for answer in found:
                    opened.add(answer)
                    self._count(answer)
                    await self._bound_loss()
            await self._write(opened)
        except BaseException:
            await self._keep(opened)
            raise
        finally:
            del self._open[opened.chunk.number]
            await self._release(opened.claim)

    def _count(self, answer: dict[str, Any]) -> None:
        tally = self._tally
        tally.count(answer)
        if tally.num_refused > self._max_error_rate * tally.num_lines:
            raise TooManyErrors(tally.num_refused, tally.num_lines, self._max_error_rate)

    async def _bound_loss(self) -> None:
        """Keep answers before a kill would lose half of a chunk's lines; two chunks may be open."""
        unfinished = [opened for opened in self._open.values() if len(opened.rows) < len(opened.lines)]
        longest = max(unfinished, key=lambda opened: len(opened.unsaved), default=None)
        if longest is not None and len(longest.unsaved) >= CHUNK_LINES // 2:
            await self._keep(longest)

    async def _keep(self, opened: OpenChunk) -> None:
        """Store the answers of a chunk without a part that a kill would lose."""
        async with opened.storing:
            if not opened.has_part and (unsaved := opened.unsaved):
                rows = [opened.rows[number] for number in sorted(unsaved)]

                def keep() -> None:
                    self._parts.keep(opened.chunk, rows)
                    opened.kept |= unsaved

                await _to_its_end(keep)

    async def _write(self, opened: OpenChunk) -> None:
        """Write the part of a chunk."""

        def write() -> None:
            self._parts.write(opened.chunk, opened.part)
            opened.has_part = True

        async with opened.storing:
            await _to_its_end(write)

    async def _renew_often(self) -> None:
        while True:
            await asyncio.sleep(RENEW_INTERVAL_S)
            for opened in list(self._open.values()):
                with suppress(OSError, ServiceError):  # a lost claim costs no more than work done twice
                    await asyncio.to_thread(opened.claim.renew)

    @staticmethod
    async def _release(claim: Claim) -> None:
        with suppress(OSError, ServiceError):
            await asyncio.to_thread(claim.release)


async def _to_its_end(work: Callable[[], None]) -> None:
    """Do work in a thread; a cancellation, which does not stop the thread, is raised once it has ended."""
    working = asyncio.create_task(asyncio.to_thread(work))
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait((working,))
        raise


def _row(answer: dict[str, Any]) -> bytes:
    return single_line(json.dumps(answer, ensure_ascii=False).encode()) + b"\n"
