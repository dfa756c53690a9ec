"""Log lines written by a background thread, so that a stalled reader of stdout blocks no request.

A pipe holds 64 KB. Once it is full, a write blocks until the reader continues; the event loop and the device thread
must not block. For the same reason, output that Python itself would write to stderr is logged too.
"""

import logging
import queue
import sys
import threading
import time
from typing import Any, TextIO, override

logger = logging.getLogger(__name__)

# Limit on buffered lines, in characters: enough for thousands of requests.
MAX_WAITING_CHARS = 8 * 2**20
# How long a flush waits for buffered lines to be written.
FLUSH_S = 0.5
NOTICE_INTERVAL_S = 1.0  # between two lines about dropped lines


class BackgroundLog(logging.StreamHandler[TextIO]):
    """Formats records on the logging thread, with the trace of the request, and writes them from a background thread.

    Lines beyond the buffer are dropped; a later line reports their number.
    """

    def __init__(self, stream: TextIO, *, max_waiting_chars: int = MAX_WAITING_CHARS) -> None:
        """Start the thread that writes to `stream`."""
        super().__init__(stream)
        # Python's signal handlers may log at any line of the main thread; only SimpleQueue is reentrant.
        self._waiting: queue.SimpleQueue[str | threading.Event] = queue.SimpleQueue()
        self._max_waiting_chars = max_waiting_chars
        # The first two are written by loggers, which hold the handler's lock, the others by the background thread.
        self._num_chars_in, self._num_dropped = 0, 0
        self._num_chars_out, self._num_lost, self._num_reported = 0, 0, 0
        self._reported_at_s = -NOTICE_INTERVAL_S
        self._is_stuck = False
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + self.terminator
        except Exception as error:  # `handleError` would write to stderr, which could block
            line = self.format(_unprintable(record, error)) + self.terminator
        if self._num_chars_in - self._num_chars_out + len(line) > self._max_waiting_chars:
            self._num_dropped += 1
            return
        self._num_chars_in += len(line)
        self._waiting.put(line)

    @override
    def flush(self) -> None:
        """Wait for a short time until all lines so far are written."""
        self.write_out(FLUSH_S)

    def write_out(self, limit_s: float) -> bool:
        """Wait up to `limit_s` until all lines so far are written; return whether they are."""
        reached = threading.Event()
        self._waiting.put(reached)
        # Do not wait again for a reader that was stuck the last time.
        self._is_stuck = not reached.wait(0.0 if self._is_stuck else limit_s)
        return not self._is_stuck

    def _write_all(self) -> None:
        while True:
            item = self._waiting.get()
            if isinstance(item, str):
                self._num_lost += not self._has_written(item)
                self._num_chars_out += len(item)
            is_due = self._waiting.empty() or time.monotonic() - self._reported_at_s > NOTICE_INTERVAL_S
            if isinstance(item, threading.Event) or is_due:
                self._report_dropped()
            if isinstance(item, threading.Event):
                item.set()

    def _has_written(self, line: str) -> bool:
        try:
            self.stream.write(line)
            self.stream.flush()
        except (OSError, ValueError):  # a full disk, or a closed stream
            return False
        return True

    def _report_dropped(self) -> None:
        num_dropped = self._num_dropped + self._num_lost
        if num_dropped == self._num_reported:
            return
        message = "The log could not be written for a while, so some lines are missing."
        fields = {"dropped_log_lines": num_dropped - self._num_reported}
        # Bypasses the logger's handlers, which are locked while the process ends.
        record = logger.makeRecord(__name__, logging.WARNING, __file__, 0, message, (), None, "_report_dropped", fields)
        if self._has_written(self.format(record) + self.terminator):
            self._num_reported, self._reported_at_s = num_dropped, time.monotonic()


def _unprintable(record: logging.LogRecord, error: Exception) -> logging.LogRecord:
    """Return a record in place of one that cannot be formatted, without its arguments."""
    message = "a log line cannot be formatted"
    fields = {"error": type(error).__name__, "format": str(record.msg)}
    return logger.makeRecord(
        __name__, logging.ERROR, record.pathname, record.lineno, message, (), None, record.funcName, fields
    )


def log_in_background() -> None:
    """Write all log lines of this process from a background thread from now on."""
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
    logger.error("a thread has died of an exception", extra={"thread_name": name}, exc_info=error)


def _log_unraisable(args: Any) -> None:
    logger.error("unraisable exception", exc_info=args.exc_value)


def write_out_log(limit_s: float) -> bool:
    """Wait up to `limit_s` until all lines so far are written; return whether they are."""
    handlers = [handler for handler in logging.getLogger().handlers if isinstance(handler, BackgroundLog)]
    return all(handler.write_out(limit_s) for handler in handlers)
