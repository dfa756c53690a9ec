"""The encoder's public side: submit texts, await their vectors. Two threads, two hops, and no lock between them."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable

from service.encoder.loop import Loop, StepRunner
from service.encoder.request import Abort, EncodeRequest, Stop, Submission, Vectors
from service.errors import Draining, EngineStopped, Overloaded, QueueTimeout, ServiceError
from service.observability.clock import QueueDeadline
from service.observability.model_metrics import ModelMetrics

logger = logging.getLogger(__name__)

DRAIN_POLL_S = 0.02


class Encoder:
    """Turns texts, as token ids, into vectors; call `start` before the first `submit`."""

    def __init__(
        self,
        runner: StepRunner,
        metrics: ModelMetrics,
        *,
        max_requests: int,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """Connect a runner with its device thread.

        Args:
            runner: the device side.
            metrics: updated by the device thread.
            max_requests: the most requests that may be open at once, waiting ones included.
            on_failure: called on the device thread after it failed; the process should end then.
        """
        self.runner = runner
        self._max_requests = max_requests
        self._on_failure = on_failure
        self._loop = Loop(runner, metrics)
        self._thread = threading.Thread(target=self._run, name="device", daemon=True)
        self._open: dict[str, asyncio.Future[Vectors]] = {}
        self._is_draining = False

    @property
    def is_live(self) -> bool:
        """Whether the device thread is running."""
        return self._thread.is_alive() and self._loop.error is None

    @property
    def first_vector_s(self) -> float | None:
        """The time of the first vector, on the clock of `time.monotonic`; None before it."""
        return self._loop.first_vector_s

    @property
    def step_wait_s(self) -> float:
        """How long the device thread has been waiting for the step that it reads now; 0 if it reads none."""
        since_s = self._loop.reading_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    @property
    def num_open(self) -> int:
        """Requests that are not yet answered."""
        return len(self._open)

    def start(self) -> None:
        """Start the device thread."""
        self._thread.start()

    def submit(self, request: EncodeRequest) -> asyncio.Future[Vectors]:
        """Return the future of a request's vectors, in the order of its texts; to cancel it ends the request.

        A request that wants tokens gets a row for each token instead, of one text after the other.

        Called on the event loop that awaits the future. It raises NonFiniteVector if one of the vectors is NaN or
        infinite, QueueTimeout if no step takes a text of it in time, and EngineError if the device thread fails.

        Raises:
            Overloaded: `max_requests` requests are open.
            Draining: the encoder accepts no more requests.
            EngineStopped: the device thread has ended.
        """
        self._check_live()
        if self._is_draining:
            raise Draining
        if len(self._open) >= self._max_requests:
            raise Overloaded(running=len(self._open), limit=self._max_requests)
        assert request.id not in self._open, "request ids are unique"
        future: asyncio.Future[Vectors] = asyncio.get_running_loop().create_future()
        self._loop.inbox.put(Submission(request, future))
        # A loop that failed just now may have emptied its inbox for the last time before this message arrived.
        self._check_live()
        self._open[request.id] = future
        future.add_done_callback(lambda done: self._close(request.id, was_cancelled=done.cancelled()))
        if request.queue_deadline is not None:
            self._limit_wait(request, future, request.queue_deadline)
        return future

    async def drain(self, timeout_s: float) -> bool:
        """Accept no more requests and wait until the open ones are answered.

        Returns:
            Whether all of them were answered within the time; the others are still open.
        """
        self._is_draining = True
        deadline_s = time.monotonic() + timeout_s
        while self._open and self.is_live and time.monotonic() < deadline_s:
            await asyncio.sleep(DRAIN_POLL_S)
        return not self._open

    def cut(self, make_error: Callable[[], ServiceError]) -> None:
        """End every open request with an error of its own, even if a step hangs; called on the event loop."""
        for future in list(self._open.values()):
            future.set_exception(make_error())

    def stop(self, timeout_s: float | None = None) -> None:
        """End the device thread, and wait for that for so long; requests that are still open get an error."""
        self._loop.inbox.put(Stop())
        self._thread.join(timeout_s)

    def _close(self, request_id: str, *, was_cancelled: bool) -> None:
        del self._open[request_id]
        if was_cancelled:
            self._loop.inbox.put(Abort(request_id))

    def _limit_wait(self, request: EncodeRequest, future: asyncio.Future[Vectors], deadline: QueueDeadline) -> None:
        def end() -> None:
            # The device thread may begin with the request at the same moment; what it computes is then dropped.
            if not future.done() and request.clock.scheduled_s is None:
                self._loop.inbox.put(Abort(request.id))
                future.set_exception(QueueTimeout(deadline.limit_s))

        timer = future.get_loop().call_later(deadline.end_s - time.perf_counter(), end)
        future.add_done_callback(lambda _: timer.cancel())

    def _check_live(self) -> None:
        if not self.is_live:
            raise EngineStopped("The encoder has stopped; this instance is about to be replaced. Try again.")

    def _run(self) -> None:
        try:
            self._loop.run()
        except Exception:
            logger.critical("The device thread failed; every open request gets an error.", exc_info=True)
            self._on_failure()
