"""Limits on a transfer: retries with exponential backoff, one deadline for all threads, and a minimum throughput.

Protocol-independent: a reader raises `TransientFault` for a failure that is worth a retry.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from service.errors import TransferFailed

if TYPE_CHECKING:
    from tenacity import AttemptManager, RetryCallState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """Limits of a transfer; the defaults suit a bucket in the same region and a home connection alike."""

    deadline_s: float = 1500.0  # of the whole transfer, PULL_TIMEOUT
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0  # without any bytes
    max_attempts: int = 8  # of one read, including the first
    outage_s: float = 120.0  # during which a read goes on beyond `max_attempts` while the server asks for a retry
    max_wait_s: float = 10.0  # between two attempts, unless the server asks for more
    min_bytes_per_s: int = 16 * 1024  # of one body over `slow_window_s`; a slower body is requested again
    slow_window_s: float = 30.0
    # One stream carries 50 to 100 MB/s, a machine's link 1 to 10 GB/s; more than a few threads per core contend.
    num_workers: int = field(default_factory=lambda: min(16, 4 * (os.cpu_count() or 1)))
    slice_bytes: int = 16 * 1024 * 1024  # of one request
    chunk_bytes: int = 2 * 1024 * 1024  # still in the CPU's cache when it is checksummed and cast


class TransientFault(Exception):
    """A failure that is worth a retry."""

    def __init__(self, reason: str, retry_after_s: float | None = None, *, is_outage: bool = False) -> None:
        """State the failure.

        Args:
            reason: what failed.
            retry_after_s: how long the server asks to wait.
            is_outage: whether the server has answered that it cannot at the moment, so the address is right.
        """
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.is_outage = is_outage


class RetryBudget:
    """Remaining time and attempts of one transfer, shared by its threads; `cancel` stops all of them."""

    def __init__(self, limits: TransferLimits, cancelled: threading.Event | None = None) -> None:
        """Start the clock.

        Args:
            limits: the deadline and the number of attempts.
            cancelled: set by the caller to stop the transfer.
        """
        self.limits = limits
        self._deadline_s = time.monotonic() + limits.deadline_s  # on the monotonic clock
        # Two events: the caller's, and one that a failing thread sets to stop its siblings.
        self._cancelled_by_caller = cancelled
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Stop every thread of the transfer at its next check."""
        self._cancelled.set()

    @property
    def remaining_s(self) -> float:
        return max(0.0, self._deadline_s - time.monotonic())

    def check(self, uri: str, name: str) -> None:
        """Raise if the transfer has to stop.

        Raises:
            TransferFailed: the deadline has passed or the transfer was cancelled.
        """
        if self._is_cancelled:
            raise TransferFailed(uri, name, "the pull was stopped before it was complete.")
        if self.remaining_s <= 0:
            raise TransferFailed(
                uri,
                name,
                f"the checkpoint was not complete after PULL_TIMEOUT = {self.limits.deadline_s:g} s. Downloaded files "
                "are kept and the next start continues from there. Raise PULL_TIMEOUT for a slow connection.",
            )

    def sleep(self, seconds: float) -> None:
        """Sleep until the time is up, the deadline passes or a sibling cancels."""
        self._cancelled.wait(min(seconds, self.remaining_s))

    def attempts(self, uri: str, name: str) -> "Iterator[AttemptManager]":
        """Yield a context manager for each attempt until one ends without a `TransientFault`.

        Source: https://cloud.google.com/storage/docs/retry-strategy (exponential backoff with jitter)

        Raises:
            TransferFailed: the attempts or the time ran out; its cause is the last fault.
        """
        import tenacity  # 20 ms, which a local checkpoint does not need

        wait = tenacity.wait_random_exponential(multiplier=0.5, max=self.limits.max_wait_s)

        def is_over(state: "RetryCallState") -> bool:
            fault = _fault_of(state)
            is_hopeless = (fault.retry_after_s or 0.0) >= self.remaining_s
            may_pass = fault.is_outage and (state.seconds_since_start or 0.0) < self.limits.outage_s
            has_no_more = state.attempt_number >= self.limits.max_attempts and not may_pass
            return self._is_cancelled or is_hopeless or has_no_more

        def log(state: "RetryCallState") -> None:
            facts = {"object": name, "reason": _fault_of(state).reason, "attempt": state.attempt_number}
            logger.warning("retrying a transfer", extra=facts)

        def give_up(state: "RetryCallState") -> None:
            self.check(uri, name)
            fault = _fault_of(state)
            reason = f"{fault.reason}; gave up at attempt {state.attempt_number}. Try again later."
            raise TransferFailed(uri, name, reason) from fault

        return iter(
            tenacity.Retrying(
                retry=tenacity.retry_if_exception_type(TransientFault),
                stop=is_over,
                wait=lambda state: max(wait(state), _fault_of(state).retry_after_s or 0.0),
                sleep=self.sleep,
                before_sleep=log,
                retry_error_callback=give_up,
            )
        )

    @property
    def _is_cancelled(self) -> bool:
        by_caller = self._cancelled_by_caller is not None and self._cancelled_by_caller.is_set()
        return by_caller or self._cancelled.is_set()


class ThroughputWatchdog:
    """A minimum throughput of one body, which could trickle in without ever reaching the read timeout."""

    def __init__(self, limits: TransferLimits) -> None:
        self._limits = limits
        self._window_bytes = 0
        self._window_started_s = time.monotonic()

    def add(self, num_bytes: int) -> None:
        """Count bytes that arrived.

        Raises:
            TransientFault: less than the minimum arrived within the last window.
        """
        self._window_bytes += num_bytes
        elapsed_s = time.monotonic() - self._window_started_s
        if elapsed_s < self._limits.slow_window_s:
            return
        rate = self._window_bytes / elapsed_s
        if rate < self._limits.min_bytes_per_s:
            raise TransientFault(f"only {rate:.0f} bytes per second arrived over {elapsed_s:.0f} s")
        self._window_bytes = 0
        self._window_started_s = time.monotonic()


def _fault_of(state: "RetryCallState") -> TransientFault:
    fault = state.outcome.exception() if state.outcome else None
    assert isinstance(fault, TransientFault)
    return fault
