"""How far a pull has come: a counter that threads share, and two ways to show it.

`/health/ready` reads the counter. On a terminal one line is rewritten; elsewhere a log line comes every few seconds.
"""

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

TERMINAL_INTERVAL_S = 0.2
LOG_INTERVAL_S = 5.0


class Progress:
    """Bytes that came, of the bytes that are needed; safe to read and write from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes_done = 0
        self._bytes_total = 0
        self._started_at = time.monotonic()

    def expect(self, num_bytes: int) -> None:
        """Raise the total by what one more pull needs."""
        with self._lock:
            if not self._bytes_total:
                self._started_at = time.monotonic()
            self._bytes_total += num_bytes

    def add(self, num_bytes: int) -> None:
        """Count bytes that came; a negative number takes back bytes that must come again."""
        with self._lock:
            self._bytes_done += num_bytes

    @property
    def bytes_done(self) -> int:
        """Bytes that came so far."""
        return self._bytes_done

    @property
    def bytes_total(self) -> int:
        """Bytes that are needed in all; 0 until the first pull begins."""
        return self._bytes_total

    @property
    def bytes_per_second(self) -> float:
        """The mean rate since the first pull began."""
        return self._bytes_done / max(time.monotonic() - self._started_at, 1e-3)


@contextmanager
def shown(progress: Progress, label: str) -> Iterator[None]:
    """Show the progress while the body runs: on stdout if that is a terminal, else in the log."""
    out = sys.stdout
    is_terminal = out.isatty()
    is_over = threading.Event()

    def show_until_over() -> None:
        while not is_over.wait(TERMINAL_INTERVAL_S if is_terminal else LOG_INTERVAL_S):
            if is_terminal:
                out.write(f"\r\x1b[2K{render(progress, label)}")
                out.flush()
            else:
                _log(progress, label)

    thread = threading.Thread(target=show_until_over, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        if is_terminal:
            out.write("\r\x1b[2K")
            out.flush()


def render(progress: Progress, label: str) -> str:
    """One line: what, percent, bytes, rate and the time that is left."""
    done, total, rate = progress.bytes_done, progress.bytes_total, progress.bytes_per_second
    percent = 100 * done // total if total else 100
    left_s = (total - done) / rate if rate > 0 else float("inf")
    left = f"{int(left_s) // 60}:{int(left_s) % 60:02d} left" if left_s < 360_000 else "waiting"
    return f"{label}  {percent:3d} %  {_human(done)} of {_human(total)}  {_human(rate)}/s  {left}"


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


def _human(num_bytes: float | int) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.2f} TB"
