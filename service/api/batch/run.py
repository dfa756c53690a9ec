"""One batch, from its validation to its results; a run that was stopped is continued by the next.

validating ─> failed
    └─> in_progress ─> finalizing ─> completed
          ├──────────────────────> expired
          └─> cancelling ────────> cancelled
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Coroutine, Iterator
from contextlib import aclosing
from typing import Any, BinaryIO

from starlette.types import ASGIApp

from service.api.batch.answer_log import AnswerLog
from service.api.batch.batches import Batches, folder_of, input_name
from service.api.batch.lines import BatchLine, numbered_lines, parse_line
from service.api.batch.records import Batch
from service.api.batch.requests import answers, as_background, client_of
from service.api.batch.results import write_results
from service.api.batch.validation import validate
from service.errors import ServiceError, UnknownObject
from service.storage.ages import expiry_time
from service.storage.store import Claim

logger = logging.getLogger(__name__)

SAVE_INTERVAL_S = 10.0
# A request may take this much longer than its batch, whose end then comes first and decides what becomes of it.
GRACE_S = 60.0


class ClaimLost(ServiceError):
    """Another process has taken the batch, because this one did not renew its claim in time."""


class BatchRun:
    """The work on one batch that this process has claimed."""

    def __init__(
        self,
        batch: Batch,
        batches: Batches,
        claim: Claim,
        api: ASGIApp,
        *,
        models: Collection[str],
        slots: asyncio.Semaphore,
        cancelled: asyncio.Event,
        max_line_bytes: int,
        save_interval_s: float = SAVE_INTERVAL_S,
    ) -> None:
        """Prepare a run.

        Args:
            batch: as it is stored.
            batches: its place.
            claim: of this process on it.
            api: the app that answers.
            models: the names of the served model.
            slots: one is held by each request in flight.
            cancelled: set when the batch is to end.
            max_line_bytes: the longest line.
            save_interval_s: how often answers and counts are written.
        """
        self._batch, self._batches, self._claim, self._api = batch, batches, claim, api
        self._models, self._slots, self._max_line_bytes = models, slots, max_line_bytes
        self._cancelled = cancelled
        self._log = AnswerLog(batches.store, folder_of(batch.owner, batch.id))
        self._done: set[str] = set()
        self._is_owner = True
        self._save_interval_s = save_interval_s

    async def run(self) -> None:
        """Bring the batch to its end.

        Raises:
            EngineStopped: the engine failed; the batch can be continued.
            ClaimLost: another process continues it.
            OSError, CheckpointError: its place failed.
        """
        batch = self._batch
        if batch.status == "validating" and self._seconds_left() > 0:
            await asyncio.to_thread(self._validate)
        if batch.status == "in_progress":
            await asyncio.to_thread(self._load)
            with await asyncio.to_thread(self._open_input) as source:
                await self._answer(source)
        if batch.is_open:
            await self._renew()
            outcome = {"finalizing": "completed", "cancelling": "cancelled"}.get(batch.status, "expired")
            await self._claimed(asyncio.to_thread(self._finish, outcome))
        await asyncio.to_thread(self._batches.end, batch)
        counts = {"lines": batch.total, "completed": batch.completed, "failed": batch.failed}
        logger.info("batch ended", extra={"batch": batch.id, "status": batch.status, **counts})

    async def _answer(self, source: BinaryIO) -> None:
        """Answer the lines until all are, the batch is cancelled, or its time is over; save what there is."""
        working = asyncio.create_task(self._work(source))
        saving = asyncio.create_task(self._save_often())
        cancelled = asyncio.create_task(self._cancelled.wait())
        try:
            tasks = (working, saving, cancelled)
            await asyncio.wait(tasks, timeout=self._seconds_left(), return_when=asyncio.FIRST_COMPLETED)
            for task in (working, saving):
                if task.done():
                    task.result()
            if working.done():
                self._batch.enter("finalizing")
            elif cancelled.done():
                self._batch.enter("cancelling")
        finally:
            for task in (working, saving, cancelled):
                task.cancel()
            await asyncio.gather(working, saving, cancelled, return_exceptions=True)
            if self._is_owner:
                await self._save()

    async def _work(self, source: BinaryIO) -> None:
        api = as_background(self._api, self._batch.owner, lambda: self._seconds_left() + GRACE_S)
        async with client_of(api) as client, aclosing(answers(client, self._lines(source), self._slots)) as found:
            async for answer in found:
                self._log.add(answer)
                self._batch.count(answer)

    def _lines(self, source: BinaryIO) -> Iterator[BatchLine]:
        for _, text in numbered_lines(source, self._max_line_bytes):
            line = parse_line(text)
            if line.custom_id not in self._done:
                yield line

    async def _save_often(self) -> None:
        while True:
            await asyncio.sleep(self._save_interval_s)
            await self._renew()
            await self._save()
            if self._batch.status == "cancelling":
                self._cancelled.set()

    async def _renew(self) -> None:
        self._is_owner = await asyncio.to_thread(self._claim.renew)
        if not self._is_owner:
            raise ClaimLost(f"{self._batch.id} is run by another process")

    async def _claimed(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for work in a thread that may take longer than a claim."""
        working = asyncio.create_task(work)
        try:
            while not (await asyncio.wait([working], timeout=self._save_interval_s))[0]:
                await self._renew()
            working.result()
        finally:
            working.cancel()

    async def _save(self) -> None:
        lines = self._log.take()
        try:
            await asyncio.to_thread(self._log.write, lines)
        except BaseException:
            self._log.give_back(lines)
            raise
        # As it is now: a thread that takes its time must not write what is true only with the next answers.
        self._take_over(await asyncio.to_thread(self._batches.save, self._batch.copied()))

    def _take_over(self, stored: Batch | None) -> None:
        """Take over what the record is now; raises ClaimLost if another process has ended the batch."""
        batch = self._batch
        if stored is None or stored.status not in {batch.status, "cancelling"}:
            self._is_owner = False
            raise ClaimLost(f"{batch.id} was ended by another process")
        batch.status, batch.moments = stored.status, stored.moments
        batch.output_file_id, batch.error_file_id = stored.output_file_id, stored.error_file_id

    def _open_input(self) -> BinaryIO:
        source = self._batches.store.open(input_name(self._batch))
        assert source is not None, "the input of a batch is deleted when it has ended"
        return source

    def _validate(self) -> None:
        with self._open_input() as source:
            validated = validate(
                source, endpoint=self._batch.endpoint, models=self._models, max_line_bytes=self._max_line_bytes
            )
        self._batch.model, self._batch.errors = validated.model, validated.errors
        self._batch.total = 0 if validated.errors else validated.num_lines
        self._batch.enter("failed" if validated.errors else "in_progress")
        self._take_over(self._batches.save(self._batch))

    def _load(self) -> None:
        """Read what earlier runs have answered."""
        self._batch.reset_counts()
        for answer in self._log.load():
            if answer["custom_id"] not in self._done:
                self._done.add(answer["custom_id"])
                self._batch.count(answer)

    def _finish(self, outcome: str) -> None:
        batch = self._batch
        write_results(self._batches, batch, outcome, self._max_line_bytes)
        batch.enter(outcome)
        stored = self._batches.save(batch)
        named = set[str]() if stored is None else stored.file_ids
        for file_id in batch.file_ids - named:  # another process has cancelled the batch, or ended it
            with contextlib.suppress(UnknownObject):
                self._batches.files.delete(batch.owner, file_id)
        self._take_over(stored)
        if batch.status == "cancelling":
            self._finish("cancelled")

    def _seconds_left(self) -> float:
        return max(0.0, self._batch.expires_at - expiry_time())
