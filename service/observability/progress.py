"""Progress of a long operation: byte counters, shown as a rewritten line on a terminal and as log records elsewhere.

The counters of a transfer are shared by its threads and also read by `/health/ready`.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TextIO

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 5.0
TERMINAL_INTERVAL_S = 0.2
CLEAR_LINE = "\r\x1b[2K"

# Held while a line is shown: two would overwrite each other.
_terminal_line = threading.Lock()


class Progress:
    """Counters of received and expected bytes; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes_done = 0
        self._bytes_total = 0
        self._started_at = time.monotonic()

    def expect(self, num_bytes: int) -> None:
        """Add the bytes of another transfer to the total."""
        with self._lock:
            if not self._bytes_total:
                self._started_at = time.monotonic()
            self._bytes_total += num_bytes

    def add(self, num_bytes: int) -> None:
        """Count received bytes; a negative number discounts bytes that are fetched again."""
        with self._lock:
            self._bytes_done += num_bytes

    @property
    def bytes_done(self) -> int:
        return self._bytes_done

    @property
    def bytes_total(self) -> int:
        """Total bytes expected; 0 before the first transfer."""
        return self._bytes_total

    @property
    def bytes_per_second(self) -> float:
        """The mean rate since the first transfer began."""
        return self._bytes_done / max(time.monotonic() - self._started_at, 1e-3)


def show_progress(progress: Progress, label: str) -> AbstractContextManager[None]:
    """Show progress while the body runs: on stdout if it is a terminal, otherwise in the log."""
    return progress_line(lambda: render(progress, label), lambda: _log(progress, label), log_interval_s=LOG_INTERVAL_S)


def render(progress: Progress, label: str) -> str:
    """Format a line with label, percentage, bytes, rate and estimated time left."""
    done, total, rate = progress.bytes_done, progress.bytes_total, progress.bytes_per_second
    percent = 100 * done // total if total else 100
    left_s = (total - done) / rate if rate > 0 else float("inf")
    left = f"{int(left_s) // 60}:{int(left_s) % 60:02d} left" if left_s < 360_000 else "waiting"
    return f"{label}  {percent:3d} %  {human_bytes(done)} of {human_bytes(total)}  {human_bytes(rate)}/s  {left}"


@contextmanager
def progress_line(
    line: Callable[[], str],
    log: Callable[[], None],
    *,
    log_interval_s: float,
    out: TextIO | None = None,
    keeps_last_line: bool = False,
) -> Iterator[None]:
    """Show progress from a background thread while the body runs; on a terminal, nested calls show nothing.

    Args:
        line: returns the line for a terminal, which must fit its width.
        log: writes a log record.
        log_interval_s: seconds between two log records.
        out: the stream; stdout by default.
        keeps_last_line: whether the last line stays on the terminal instead of being erased.
    """
    stream = sys.stdout if out is None else out
    is_terminal = stream.isatty()
    if is_terminal and not _terminal_line.acquire(blocking=False):
        yield
        return
    is_over = threading.Event()

    def write(text: str) -> None:
        stream.write(text)
        stream.flush()

    def show_until_over() -> None:
        while not is_over.wait(TERMINAL_INTERVAL_S if is_terminal else log_interval_s):
            if is_terminal:
                write(f"{CLEAR_LINE}{line()}")
            else:
                log()

    thread = threading.Thread(target=show_until_over, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        if is_terminal:
            write(f"{CLEAR_LINE}{line()}\n" if keeps_last_line else CLEAR_LINE)
            _terminal_line.release()


def _log(progress: Progress, label: str) -> None:
    logger.info(
        "pulling %s",
        label,
        extra={
            "bytes_done": progress.bytes_done,
            "bytes_total": progress.bytes_total,
            "bytes_per_second": round(progress.bytes_per_second),
        },
    )


def human_bytes(num_bytes: float | int) -> str:
    """Format a number of bytes with about three digits in decimal units."""
    for unit in ("B", "KB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.2f} TB"
