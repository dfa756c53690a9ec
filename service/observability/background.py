"""Log lines written by a thread of their own, so that a reader of stdout that stops holds up no request.

A pipe holds 64 KB. Once it is full, a write waits for its reader; the event loop and the device thread must not. What
Python itself would write to stderr is logged too, for the same reason.
"""

import logging
import queue
import sys
import threading
import time
from typing import Any, TextIO, override

logger = logging.getLogger(__name__)

# Lines that wait for the reader, in characters: those of some thousand requests.
MAX_WAITING_CHARS = 8 * 2**20
# Time for the lines that wait to be written before the process goes on without them.
FLUSH_S = 0.5
NOTICE_INTERVAL_S = 1.0  # between two lines about lines that were dropped


class BackgroundLog(logging.StreamHandler[TextIO]):
    """Formats a record where it is logged, with the trace of its request, and has its line written later.

    A line for which there is no room is dropped; a later line has the number of those.
    """

    def __init__(self, stream: TextIO, *, max_waiting_chars: int = MAX_WAITING_CHARS) -> None:
        """Start the thread that writes to `stream`."""
        super().__init__(stream)
        # Python's signal handlers log from whatever line the main thread is at: this queue alone lets them.
        self._waiting: queue.SimpleQueue[str | threading.Event] = queue.SimpleQueue()
        self._max_waiting_chars = max_waiting_chars
        # Each is changed by one side: those that log, one at a time, and the thread.
        self._num_chars_in, self._num_dropped = 0, 0
        self._num_chars_out, self._num_lost, self._num_told = 0, 0, 0
        self._told_at_s = -NOTICE_INTERVAL_S
        self._is_stuck = False
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + self.terminator
        except Exception as error:  # `handleError` would write to stderr, which nobody may read
            line = self.format(_unprintable(record, error)) + self.terminator
        if self._num_chars_in - self._num_chars_out + len(line) > self._max_waiting_chars:
            self._num_dropped += 1
            return
        self._num_chars_in += len(line)
        self._waiting.put(line)

    @override
    def flush(self) -> None:
        """Wait until every line so far is written, for a short time; `write_out` tells whether it was."""
        self.write_out(FLUSH_S)

    def write_out(self, limit_s: float) -> bool:
        """Return whether every line so far is written within so many seconds; the thread goes on otherwise."""
        reached = threading.Event()
        self._waiting.put(reached)
        # A reader that has not come back in one such time is not awaited for another.
        self._is_stuck = not reached.wait(0.0 if self._is_stuck else limit_s)
        return not self._is_stuck

    def _write_all(self) -> None:
        while True:
            item = self._waiting.get()
            if isinstance(item, str):
                self._num_lost += not self._has_written(item)
                self._num_chars_out += len(item)
            is_due = self._waiting.empty() or time.monotonic() - self._told_at_s > NOTICE_INTERVAL_S
            if isinstance(item, threading.Event) or is_due:
                self._tell_dropped()
            if isinstance(item, threading.Event):
                item.set()

    def _has_written(self, line: str) -> bool:
        try:
            self.stream.write(line)
            self.stream.flush()
        except (OSError, ValueError):  # a full disk, or a stream that is closed
            return False
        return True

    def _tell_dropped(self) -> None:
        num_dropped = self._num_dropped + self._num_lost
        if num_dropped == self._num_told:
            return
        message = "The log was not read or not written for a while, so lines of it are missing."
        facts = {"dropped_log_lines": num_dropped - self._num_told}
        # Not through a logger's handlers, which are held while the process ends.
        record = logger.makeRecord(__name__, logging.WARNING, __file__, 0, message, (), None, "_tell_dropped", facts)
        if self._has_written(self.format(record) + self.terminator):
            self._num_told, self._told_at_s = num_dropped, time.monotonic()


def _unprintable(record: logging.LogRecord, error: Exception) -> logging.LogRecord:
    """Return a record that tells of another one which cannot be formatted, without what it has."""
    message = "a log line cannot be formatted"
    facts = {"error": type(error).__name__, "format": str(record.msg)}
    return logger.makeRecord(
        __name__, logging.ERROR, record.pathname, record.lineno, message, (), None, record.funcName, facts
    )


def log_in_background() -> None:
    """Have a thread write the lines of this process from now on."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        if type(handler) is logging.StreamHandler:
            background = BackgroundLog(handler.stream)
            background.setFormatter(handler.formatter)
            root.addHandler(background)
            root.removeHandler(handler)
    logging.captureWarnings(True)
    threading.excepthook = _log_end_of_thread
    sys.unraisablehook = _log_unraisable


def _log_end_of_thread(args: threading.ExceptHookArgs) -> None:
    name = None if args.thread is None else args.thread.name
    error = args.exc_value or args.exc_type()
    logger.error("a thread has ended by an error", extra={"thread_name": name}, exc_info=error)


def _log_unraisable(args: Any) -> None:
    logger.error("an error was raised where nothing can catch it", exc_info=args.exc_value)


def write_out_log(limit_s: float) -> bool:
    """Return whether every line so far is written within so many seconds."""
    handlers = [handler for handler in logging.getLogger().handlers if isinstance(handler, BackgroundLog)]
    return all(handler.write_out(limit_s) for handler in handlers)
