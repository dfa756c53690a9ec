"""The engine's public side: submit a request, read its stream. Two threads, two hops, and no lock between them.

event loop thread                      device thread (`loop`)
submit ── inbox ──────────────────────> take, plan, dispatch, commit
stream <── call_soon_threadsafe ─────── deliver
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait

from service.engine.loop import Loop, StepRunner
from service.engine.request import Abort, Call, Generation, Request, Stop, Submission, TokenStream
from service.engine.schedule.chunking import Chunking
from service.engine.schedule.device_turns import DeviceTurns
from service.engine.schedule.scheduler import Scheduler
from service.engine.shapes import EngineShapes
from service.errors import Draining, EngineStopped, Overloaded, ServiceError
from service.observability.model_metrics import ModelMetrics

logger = logging.getLogger(__name__)

LIVENESS_POLL_S = 1.0  # how often a call looks whether the device thread, which should run it, has ended


class Engine:
    """Continues sequences of token ids; call `start` before the first `submit`."""

    def __init__(
        self,
        runner: StepRunner,
        shapes: EngineShapes,
        metrics: ModelMetrics,
        *,
        max_requests: int,
        on_failure: Callable[[], None] = lambda: None,
        turns: DeviceTurns | None = None,
    ) -> None:
        """Connect a runner with a scheduler.

        Args:
            runner: the device side.
            shapes: the sizes that the runner was compiled for.
            metrics: updated by the device thread.
            max_requests: the most requests of clients that may be open at once, waiting ones included.
            on_failure: called on the device thread after it failed; the process should end then.
            turns: of the engines that share the devices; None if this is the only one.
        """
        self.shapes = shapes
        self.runner = runner
        self._max_requests = max_requests
        self._on_failure = on_failure
        self._scheduler = Scheduler(
            num_slots=shapes.num_slots,
            num_pages=shapes.num_pages,
            page_size=shapes.page_size,
            chunking=Chunking(shapes.prefill),
        )
        self._loop = Loop(self._scheduler, runner, metrics, (turns or DeviceTurns()).join())
        self._thread = threading.Thread(target=self._run, name="device", daemon=True)
        self._streams: dict[str, TokenStream] = {}
        self._background: set[str] = set()  # those of batches
        self._is_draining = False

    @property
    def is_live(self) -> bool:
        """Whether the device thread is running."""
        return self._thread.is_alive() and self._loop.error is None

    @property
    def first_token_s(self) -> float | None:
        """The time of the engine's first token, on the clock of `time.monotonic`; None before it."""
        return self._loop.first_token_s

    @property
    def step_wait_s(self) -> float:
        """How long the device thread has been waiting for the step that it reads now; 0 if it reads none."""
        since_s = self._loop.reading_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    @property
    def num_open(self) -> int:
        """Requests that are not yet finished."""
        return len(self._streams)

    def start(self) -> None:
        """Start the device thread."""
        self._thread.start()

    def submit(self, request: Request) -> TokenStream:
        """Submit a request; called on the event loop that reads the stream.

        Raises:
            Overloaded: `max_requests` requests of clients are open, and this is one more.
            Draining: the engine accepts no more requests.
            EngineStopped: the device thread has ended.
        """
        self._check_live()
        if self._is_draining:
            raise Draining
        num_clients = len(self._streams) - len(self._background)
        if num_clients >= self._max_requests and not request.is_background:
            raise Overloaded(running=num_clients, limit=self._max_requests)
        assert request.id not in self._streams, "request ids are unique"
        stream = TokenStream(
            asyncio.get_running_loop(),
            abort=lambda: self._loop.inbox.put(Abort(request.id)),
            on_over=lambda: self._forget(request.id),
        )
        self._loop.inbox.put(Submission(request, stream))
        # A loop that failed just now may have emptied its inbox for the last time before this message arrived.
        self._check_live()
        self._streams[request.id] = stream
        if request.is_background:
            self._background.add(request.id)
        return stream

    def generate(self, requests: Iterable[Request]) -> list[Generation]:
        """Run requests to their ends, concurrently, and return their results in order. Blocks, so it is for scripts.

        Raises:
            Overloaded: there are more requests than `max_requests`.
            EngineError: the engine failed.
        """

        async def read(stream: TokenStream) -> Generation:
            token_ids: list[int] = []
            reason = None
            async for event in stream:
                token_ids += event.token_ids
                reason = event.finish_reason
            return Generation(tuple(token_ids), reason)

        async def read_all() -> list[Generation]:
            return await asyncio.gather(*[read(stream) for stream in [self.submit(request) for request in requests]])

        return asyncio.run(read_all())

    async def drain(self, timeout_s: float) -> bool:
        """Accept no more requests and wait until the open ones are finished.

        Returns:
            Whether all of them finished within the time; the others are still open.
        """
        self._is_draining = True
        deadline_s = time.monotonic() + timeout_s
        while self._streams and self.is_live and time.monotonic() < deadline_s:
            await asyncio.sleep(0.02)
        return not self._streams

    def run_between_steps(self, function: Callable[[], None]) -> None:
        """Run a function on the device thread, between two steps, and wait for it.

        Raises:
            EngineError: the engine has stopped.
            Exception: the function failed; the engine goes on.
        """
        self._check_live()
        call = Call(function, Future())
        self._loop.inbox.put(call)
        while not wait([call.done], timeout=LIVENESS_POLL_S).done:
            self._check_live()
        call.done.result()

    def cut(self, make_error: Callable[[], ServiceError]) -> None:
        """End every open request with an error of its own, even if a step hangs; called on the event loop."""
        for stream in list(self._streams.values()):
            stream.put(make_error())

    def stop(self, timeout_s: float | None = None) -> None:
        """End the device thread, and wait for that for so long; requests that are still open get an error."""
        self._loop.inbox.put(Stop())
        self._thread.join(timeout_s)

    def check_integrity(self) -> None:
        """Check that no page and no slot was lost; only after `stop`, since the device thread owns them before.

        Raises:
            PageIntegrityError: a page was lost.
        """
        self._scheduler.check_integrity()

    def _forget(self, request_id: str) -> None:
        self._streams.pop(request_id, None)
        self._background.discard(request_id)

    def _check_live(self) -> None:
        if not self.is_live:
            raise EngineStopped("The engine has stopped; this instance is about to be replaced. Try again.")

    def _run(self) -> None:
        try:
            self._loop.run()
        except Exception:
            logger.critical("The device thread failed; every open request gets an error.", exc_info=True)
            self._on_failure()
