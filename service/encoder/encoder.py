"""The encoder's public side: submit texts, await their vectors."""

import asyncio
import time
from collections.abc import Callable

from service.encoder.loop import EncoderLoop, EncoderStepRunner
from service.encoder.request import EncodeRequest, VectorAnswer, Vectors
from service.engine.device_thread import Abort, DeviceThread, Submission
from service.errors import Overloaded, QueueTimeout
from service.observability.clock import QueueDeadline
from service.observability.model_metrics import ModelMetrics


class TextEncoder(DeviceThread):
    """Turns texts, as token ids, into vectors."""

    def __init__(
        self,
        runner: EncoderStepRunner,
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
        super().__init__(EncoderLoop(runner, metrics), on_failure)
        self.runner = runner
        self._max_requests = max_requests

    def submit(self, request: EncodeRequest) -> asyncio.Future[Vectors]:
        """Return the future of a request's vectors, in the order of its texts; to cancel it ends the request.

        A request that wants tokens gets a row for each token instead, of one text after the other.

        Called on the event loop that awaits the future. It raises NonFiniteVector if one of the vectors is NaN or
        infinite, QueueTimeout if no step takes a text of it in time, and EngineError if the device thread fails.

        Raises:
            Overloaded: `max_requests` requests are open.
            EngineStopped: the device thread has ended.
        """
        if self.num_open >= self._max_requests:
            raise Overloaded(running=self.num_open, limit=self._max_requests)
        future: asyncio.Future[Vectors] = asyncio.get_running_loop().create_future()
        self._send(request.id, Submission(request, VectorAnswer(future)))
        future.add_done_callback(lambda done: self._close(request.id, was_cancelled=done.cancelled()))
        if request.queue_deadline is not None:
            self._limit_wait(request, future, request.queue_deadline)
        return future

    def _close(self, request_id: str, *, was_cancelled: bool) -> None:
        del self._open[request_id]
        if was_cancelled:
            self._inbox.put(Abort(request_id))

    def _limit_wait(self, request: EncodeRequest, future: asyncio.Future[Vectors], deadline: QueueDeadline) -> None:
        def end() -> None:
            # The device thread may begin with the request at the same moment; what it computes is then dropped.
            if not future.done() and request.clock.scheduled_s is None:
                self._inbox.put(Abort(request.id))
                future.set_exception(QueueTimeout(deadline.limit_s))

        timer = future.get_loop().call_later(deadline.end_s - time.perf_counter(), end)
        future.add_done_callback(lambda _: timer.cancel())
