"""Runs the batches that wait: the oldest first, a few at a time, each in one process, behind all other requests."""

import asyncio
import contextlib
import logging
import math
import time
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from service.api.backend import Backend
from service.api.batch.batches import Batches
from service.api.batch.records import Batch
from service.errors import ServiceError
from service.observability.metrics import Metrics
from service.storage.store import Claim

if TYPE_CHECKING:
    from service.api.batch.run import BatchRun

logger = logging.getLogger(__name__)

MAX_RUNNING = 4  # batches, which share the requests in flight
LOOK_INTERVAL_S = 60.0  # for batches that another process has created, or has left
TIDY_INTERVAL_S = 3600.0


class BatchWorker:
    """The task that starts and ends runs, on the event loop of the API."""

    def __init__(
        self,
        api: ASGIApp,
        batches: Batches,
        backend: Backend,
        metrics: Metrics,
        *,
        max_in_flight: int,
        max_line_bytes: int,
    ) -> None:
        """Prepare a worker.

        Args:
            api: the app that answers.
            batches: the batches of all owners.
            backend: knows the models.
            metrics: the series that count batches and their lines.
            max_in_flight: requests of all batches at once.
            max_line_bytes: the longest line of an input file.
        """
        self._api, self._batches, self._backend = api, batches, backend
        self._metrics = metrics
        self._slots = asyncio.Semaphore(max_in_flight)
        self._max_line_bytes = max_line_bytes
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._tidied_s = -math.inf

    def start(self) -> None:
        """Begin, or continue what an earlier process has left; called on the event loop."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """End all runs at once, after what they have was written; a later process continues them."""
        tasks = [*self._runs.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            try:
                await self._look()
            except (OSError, ServiceError) as error:
                logger.warning("batches cannot be read", extra={"reason": str(error)})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_INTERVAL_S):
                    await self._batches.has_news.wait()
            self._batches.has_news.clear()

    async def _look(self) -> None:
        if time.monotonic() - self._tidied_s > TIDY_INTERVAL_S:
            self._tidied_s = time.monotonic()
            await asyncio.to_thread(self._batches.tidy)
        for owner, batch_id in await asyncio.to_thread(self._batches.queued):
            if len(self._runs) >= MAX_RUNNING:
                return
            if (
                batch_id in self._runs
                or (claim := await asyncio.to_thread(self._batches.store.claim, batch_id)) is None
            ):
                continue
            self._runs[batch_id] = asyncio.create_task(self._run(owner, batch_id, claim))
            self._metrics.batches_running.set(len(self._runs))

    async def _run(self, owner: str, batch_id: str, claim: Claim) -> None:
        has_ended = False
        try:
            # Read after the claim, since the process that had it may have ended the batch, and after this event is
            # there: a client cancels a batch in the store first.
            cancelled = self._batches.cancelled[batch_id] = asyncio.Event()
            batch = await asyncio.to_thread(self._batches.stored, owner, batch_id)
            if batch is not None:
                self._batches.live[batch_id] = batch
                run = await asyncio.to_thread(self._prepared, batch, claim, cancelled)
                await run.run()
                self._count(batch)
                has_ended = True
        except (OSError, ServiceError) as error:
            logger.warning("a batch was interrupted", extra={"batch": batch_id, "reason": str(error)})
        except Exception:
            logger.exception("a batch failed and is tried again", extra={"batch": batch_id})
        finally:
            self._batches.live.pop(batch_id, None)
            self._batches.cancelled.pop(batch_id, None)
            self._runs.pop(batch_id, None)
            self._metrics.batches_running.set(len(self._runs))
            with contextlib.suppress(OSError, ServiceError):
                await asyncio.to_thread(claim.release)
            if has_ended:
                self._batches.has_news.set()

    def _count(self, batch: Batch) -> None:
        self._metrics.batches_ended.labels(batch.status).inc()
        for outcome, num_lines in (("completed", batch.completed), ("failed", batch.failed)):
            self._metrics.batch_lines.labels(outcome).inc(num_lines)

    def _prepared(self, batch: Batch, claim: Claim, cancelled: asyncio.Event) -> "BatchRun":
        from service.api.batch.run import BatchRun  # imports an HTTP client, which takes long and only batches need

        return BatchRun(
            batch,
            self._batches,
            claim,
            self._api,
            models=[name for model in self._backend.listed() for name in model.names],
            slots=self._slots,
            cancelled=cancelled,
            max_line_bytes=self._max_line_bytes,
        )
