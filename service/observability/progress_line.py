"""Progress of a long operation: one rewritten line on a terminal, a log record every few seconds elsewhere."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

TERMINAL_INTERVAL_S = 0.2
CLEAR_LINE = "\r\x1b[2K"


@contextmanager
def progress_line(
    line: Callable[[], str],
    log: Callable[[], None],
    *,
    log_interval_s: float,
    out: TextIO | None = None,
    keeps_last_line: bool = False,
) -> Iterator[None]:
    """Show progress from a thread of its own while the body runs.

    Args:
        line: returns the line for a terminal, shorter than the terminal is wide.
        log: writes one log record.
        log_interval_s: seconds between two log records.
        out: the stream whose terminal shows the line; stdout if left out.
        keeps_last_line: whether the terminal keeps the line as it was when the body ended, or has it erased.
    """
    stream = sys.stdout if out is None else out
    is_terminal = stream.isatty()
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
