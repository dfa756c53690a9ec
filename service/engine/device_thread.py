"""The thread that runs a model's steps, and how requests reach it. Two threads, two hops, and no lock between them.

event loop thread                      device thread (`DeviceLoop.run`)
submit ── inbox ──────────────────────> take, plan, dispatch, read
answer <── call_soon_threadsafe ─────── hand_over
"""

import asyncio
import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from service.errors import EngineError, EngineStopped, ServiceError

logger = logging.getLogger(__name__)

LIVENESS_POLL_S = 1.0  # how often a call looks whether the device thread, which should run it, has ended


@runtime_checkable
class ResultReader(Protocol):
    """Where the results of a request go."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the reader."""
        ...

    def put(self, event: Any) -> None:
        """Add a result, or the `ServiceError` that ends the answer; called on the event loop."""
        ...


@dataclass(frozen=True, slots=True)
class Submission[Request, Reader: ResultReader]:
    """A new request."""

    request: Request
    answer: Reader


@dataclass(frozen=True, slots=True)
class Abort:
    """The end of a request whose client is gone, or which has waited too long."""

    request_id: str


@dataclass(frozen=True, slots=True)
class DeviceCall:
    """A function to run between two steps."""

    function: Callable[[], None]
    done: Future[None]


class Stop:
    """The end of the device thread."""


class DeviceLoop[Request, Reader: ResultReader](ABC):
    """Takes messages and runs steps until a message ends it; other threads reach it only through the inbox."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[Submission[Request, Reader] | Abort | DeviceCall | Stop] = queue.SimpleQueue()
        self.error: EngineError | None = None  # set once, when the loop has failed or was stopped
        self.first_answer_s: float | None = None  # set once, on the clock of `time.monotonic`
        self._is_stopping = False

    @property
    @abstractmethod
    def reading_since_s(self) -> float | None:
        """Since when the thread has been waiting for a step, on the clock of `time.monotonic`; None if it is not."""

    @abstractmethod
    def _turn(self) -> None:
        """Take the messages that have arrived, waiting for one if there is no other work, and run a step."""

    @abstractmethod
    def _submit(self, submission: Submission[Request, Reader]) -> None: ...

    @abstractmethod
    def _abort(self, request_id: str) -> None:
        """End a request, unless it has ended."""

    @abstractmethod
    def _close_all(self) -> list[Reader]:
        """Drop all open requests and return their answers."""

    def run(self) -> None:
        """Run until a `Stop` arrives; a failure is sent to every open request and kept in `error`."""
        try:
            while not self._is_stopping:
                self._turn()
            self._fail(EngineError("the engine was stopped"))
        except Exception as error:
            self._fail(EngineError(f"the device thread failed: {type(error).__name__}"), cause=error)
            raise

    def _take_all(self) -> None:
        while True:
            try:
                self._take(self.inbox.get_nowait())
            except queue.Empty:
                return

    def _take(self, message: Submission[Request, Reader] | Abort | DeviceCall | Stop) -> None:
        match message:
            case Submission():
                self._submit(message)
            case Abort(request_id):
                self._abort(request_id)
            case DeviceCall(function, done):
                try:
                    done.set_result(function())
                except Exception as error:
                    done.set_exception(error)
            case Stop():
                self._is_stopping = True

    def _fail(self, error: EngineError, cause: Exception | None = None) -> None:
        error.__cause__ = cause
        self.error = error
        answers = self._close_all()
        while not self.inbox.empty():
            message = self.inbox.get_nowait()
            if isinstance(message, Submission):
                answers.append(message.answer)
            if isinstance(message, DeviceCall):
                message.done.set_exception(error)
        hand_over([(answer, error) for answer in answers])


class DeviceThread:
    """Runs a loop on a thread of its own, and knows its open requests; call `start` before the first request."""

    def __init__(self, loop: DeviceLoop[Any, Any], on_failure: Callable[[], None]) -> None:
        """Connect a loop with its thread.

        Args:
            loop: runs the steps.
            on_failure: called on the device thread after it failed; the process should end then.
        """
        self._inbox = loop.inbox
        self._loop = loop
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._run, name="device", daemon=True)
        self._open: dict[str, ResultReader] = {}

    @property
    def is_live(self) -> bool:
        """Whether the device thread is running."""
        return self._thread.is_alive() and self._loop.error is None

    @property
    def first_answer_s(self) -> float | None:
        """The time of the first token or vector, on the clock of `time.monotonic`; None before it."""
        return self._loop.first_answer_s

    @property
    def step_wait_s(self) -> float:
        """How long the device thread has been waiting for the step that it reads now; 0 if it reads none."""
        since_s = self._loop.reading_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    @property
    def num_open(self) -> int:
        """The number of requests that have not ended."""
        return len(self._open)

    def start(self) -> None:
        """Start the device thread."""
        self._thread.start()

    def run_between_steps(self, function: Callable[[], None]) -> None:
        """Run a function on the device thread, between two steps, and wait for it.

        Raises:
            EngineError: the engine has stopped.
            Exception: the function failed; the engine goes on.
        """
        self._check_live()
        call = DeviceCall(function, Future())
        self._inbox.put(call)
        while not wait([call.done], timeout=LIVENESS_POLL_S).done:
            self._check_live()
        call.done.result()

    def cut(self, make_error: Callable[[], ServiceError]) -> None:
        """End every open request with an error of its own, even if a step hangs; called on the event loop."""
        for answer in list(self._open.values()):
            answer.put(make_error())

    def begin_stop(self) -> None:
        """Have the device thread end after its step; requests that are still open get an error."""
        self._inbox.put(Stop())

    def stop(self, timeout_s: float | None = None) -> None:
        """End the device thread and wait for that, for so long at most; requests that are still open get an error."""
        self.begin_stop()
        self._thread.join(timeout_s)

    def abandon(self, error: EngineError) -> None:
        """End every open request with an error, and take no more, whatever the device thread waits for."""
        self._loop.error = self._loop.error or error
        self.begin_stop()
        hand_over([(answer, error) for answer in list(self._open.values())])

    def _send(self, request_id: str, submission: Submission[Any, Any]) -> None:
        """Send a request to the loop; the subclass removes it from `_open` when it has ended.

        Raises:
            EngineStopped: the device thread has ended.
        """
        self._check_live()
        assert request_id not in self._open, "request ids are unique"
        self._inbox.put(submission)
        # A loop that failed just now may have emptied its inbox for the last time before this message arrived.
        self._check_live()
        self._open[request_id] = submission.answer

    def _check_live(self) -> None:
        if not self.is_live:
            raise EngineStopped("The engine has stopped; this instance is about to be replaced. Try again.")

    def _run(self) -> None:
        try:
            self._loop.run()
        except Exception:
            logger.critical("The device thread failed; every open request gets an error.", exc_info=True)
            self._on_failure()


def hand_over[Reader: ResultReader](deliveries: Iterable[tuple[Reader, object]]) -> list[Reader]:
    """Put each event into its answer, with one wake-up of each event loop for any number of answers.

    Returns:
        the answers whose event loop is closed: their readers are gone, and the events are dropped.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Reader, object]]] = {}
    for delivery in deliveries:
        by_loop.setdefault(delivery[0].loop, []).append(delivery)
    unread: list[Reader] = []
    for loop, its_deliveries in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put_all, its_deliveries)
        except RuntimeError:  # it is closed
            unread += [answer for answer, _ in its_deliveries]
    return unread


def _put_all(deliveries: Iterable[tuple[ResultReader, object]]) -> None:
    for answer, event in deliveries:
        answer.put(event)
