"""How long and how often a transfer is tried: limits, retries, a deadline and a watchdog for slow bodies.

Knows nothing of buckets: whoever reads bytes raises `TransientFault` for what may be gone the next time.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from service.errors import TransferFailed

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """What a transfer may take; the defaults suit a bucket of the same region and a home connection alike."""

    deadline_s: float = 1500.0  # for one pull in all, PULL_TIMEOUT
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0  # between two arrivals of bytes
    max_attempts: int = 8  # of one request, the first included
    max_wait_s: float = 10.0  # between two attempts, unless the server asks for more
    min_bytes_per_s: int = 16 * 1024  # of one body, over `slow_window_s`; below it the connection is given up
    slow_window_s: float = 30.0
    # One stream brings 50 to 100 MB/s, a machine's link 1 to 10 GB/s; more threads than a few a core hinder each other.
    num_workers: int = field(default_factory=lambda: min(16, 4 * (os.cpu_count() or 1)))
    slice_bytes: int = 16 * 1024 * 1024  # of one request
    # What is used at once: small enough to be in the processor's cache still when it is summed and cast.
    piece_bytes: int = 2 * 1024 * 1024


class TransientFault(Exception):
    """A failure that may be gone the next time."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


class Patience:
    """The time that one pull has left, shared by its threads; `cancel` ends it for all."""

    def __init__(self, limits: TransferLimits, cancelled: threading.Event | None = None) -> None:
        self.limits = limits
        self._ends_at = time.monotonic() + limits.deadline_s
        # Two events: the caller's, and one of our own that a failed thread sets to stop its siblings.
        self._cancelled_by_caller = cancelled
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Stop every thread that shares this patience at its next chunk."""
        self._cancelled.set()

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(0.0, self._ends_at - time.monotonic())

    def check(self, uri: str, name: str) -> None:
        """Stop if the time is up.

        Raises:
            TransferFailed: the deadline has passed or the pull was cancelled.
        """
        if self._is_cancelled:
            raise TransferFailed(uri, name, "the pull was stopped before it was complete.")
        if self.remaining_s <= 0:
            raise TransferFailed(
                uri,
                name,
                f"the checkpoint was not complete after PULL_TIMEOUT = {self.limits.deadline_s:g} s. What came is "
                "kept and the next start goes on from there; raise PULL_TIMEOUT for a slow connection.",
            )

    def sleep(self, seconds: float) -> None:
        """Wait, but not past the deadline nor past a cancellation by a sibling."""
        self._cancelled.wait(min(seconds, self.remaining_s))

    def try_often[T](self, attempt: Callable[[], T], uri: str, name: str) -> T:
        """Call `attempt` until it raises no `TransientFault`, with random and growing waits in between.

        Source: https://cloud.google.com/storage/docs/retry-strategy (exponential backoff with jitter)

        Raises:
            TransferFailed: the attempts or the time ran out; chained to the last fault.
        """
        try:
            return attempt()
        except TransientFault as fault:
            return self._try_again(attempt, fault, uri, name)

    @property
    def _is_cancelled(self) -> bool:
        by_caller = self._cancelled_by_caller is not None and self._cancelled_by_caller.is_set()
        return by_caller or self._cancelled.is_set()

    def _try_again[T](self, attempt: Callable[[], T], first: TransientFault, uri: str, name: str) -> T:
        """Go on after the first attempt, which has failed."""
        import tenacity  # a start without a fault needs none of it

        failed = [first]

        def attempt_after_first() -> T:
            if failed:
                raise failed.pop()
            return attempt()

        def fault_of(state: tenacity.RetryCallState) -> TransientFault:
            fault = state.outcome.exception() if state.outcome else None
            assert isinstance(fault, TransientFault)
            return fault

        wait = tenacity.wait_random_exponential(multiplier=0.5, max=self.limits.max_wait_s)

        def wait_s(state: tenacity.RetryCallState) -> float:
            return max(wait(state), fault_of(state).retry_after_s or 0.0)

        def is_over(state: tenacity.RetryCallState) -> bool:
            is_hopeless = (fault_of(state).retry_after_s or 0.0) >= self.remaining_s
            return self._is_cancelled or is_hopeless or state.attempt_number >= self.limits.max_attempts

        def log(state: tenacity.RetryCallState) -> None:
            facts = {"object": name, "reason": fault_of(state).reason, "attempt": state.attempt_number}
            logger.warning("transfer is tried again", extra=facts)

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(TransientFault),
            stop=is_over,
            wait=wait_s,
            sleep=self.sleep,
            before_sleep=log,
            reraise=True,
        )
        try:
            return retrying(attempt_after_first)
        except TransientFault as fault:
            self.check(uri, name)
            tries = retrying.statistics["attempt_number"]
            raise TransferFailed(uri, name, f"{fault.reason}; given up at attempt {tries}. Try again later.") from fault


class ThroughputWatchdog:
    """Gives up a body that trickles: each byte comes before the read timeout, and the whole never does."""

    def __init__(self, limits: TransferLimits) -> None:
        self._limits = limits
        self._window_bytes = 0
        self._window_started_at = time.monotonic()

    def add(self, num_bytes: int) -> None:
        """Count bytes that came.

        Raises:
            TransientFault: fewer than the minimum came within the last window.
        """
        self._window_bytes += num_bytes
        elapsed_s = time.monotonic() - self._window_started_at
        if elapsed_s < self._limits.slow_window_s:
            return
        rate = self._window_bytes / elapsed_s
        if rate < self._limits.min_bytes_per_s:
            raise TransientFault(f"only {rate:.0f} bytes per second came for {elapsed_s:.0f} s")
        self._window_bytes = 0
        self._window_started_at = time.monotonic()
