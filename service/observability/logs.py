"""Log lines: one JSON object each with Cloud Logging's keys on stdout; readable text on a terminal.

Prompts, completions and keys are never logged.
Source: https://cloud.google.com/logging/docs/structured-logging (severity, message, time, logging.googleapis.com/trace)
"""

import io
import logging
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any, Literal, TextIO, override

from pythonjsonlogger.json import JsonFormatter

from service.observability.progress import CLEAR_LINE

# The trace of the request in this context, as Cloud Run sends it: `projects/PROJECT/traces/ID` or the bare id.
current_trace: ContextVar[str | None] = ContextVar("current_trace", default=None)

# Log records carry their facts as `extra` fields; these are the record's own attributes, which are not facts.
_RECORD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}


class CloudJsonFormatter(JsonFormatter):
    """Records as one line of JSON each, under the keys that Cloud Logging reads."""

    @override
    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        super().add_fields(log_data, record, message_dict)
        log_data["severity"] = record.levelname
        log_data["time"] = self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}Z"
        log_data["logger"] = record.name
        log_data.pop("color_message", None)
        log_data.pop("taskName", None)
        if (trace := current_trace.get()) is not None:
            log_data["logging.googleapis.com/trace"] = trace


class TerminalFormatter(logging.Formatter):
    """Records as `12:00:01 INFO  message  key=value`."""

    def __init__(self, before: str = "") -> None:
        """Create a formatter that begins each record with `before`, which may clear a line of progress."""
        super().__init__()
        self._before = before

    @override
    def format(self, record: logging.LogRecord) -> str:
        facts = {k: v for k, v in vars(record).items() if k not in _RECORD_ATTRIBUTES}
        shown = "".join(f"  {key}={_short(value)}" for key, value in facts.items())
        line = f"{self._before}{self.formatTime(record, '%H:%M:%S')} {record.levelname:<7} {record.getMessage()}{shown}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def configure_logging(level: str, log_format: Literal["auto", "json", "text"], stream: TextIO = sys.stdout) -> None:
    """Write every record of this process, uvicorn's included, to `stream` in one format."""
    is_text = log_format == "text" or (log_format == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    if is_text:
        handler.setFormatter(TerminalFormatter(CLEAR_LINE if stream.isatty() else ""))
    else:
        formatter = CloudJsonFormatter("%(message)s")
        formatter.converter = time.gmtime
        handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # These libraries log each HTTP call or compilation at INFO; LOG_LEVEL is meant for the service.
    for noisy in ("httpx", "urllib3", "google", "filelock", "jax", "jaxlib", "absl", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(level)))


def end_logging(write_last: Callable[[], None]) -> None:
    """Make the records of `write_last` the last of this process; other threads' records are dropped from here on."""
    with ExitStack() as held:
        handlers = [handler for handler in logging.getLogger().handlers if isinstance(handler, logging.StreamHandler)]
        for handler in handlers:
            handler.acquire()
            held.callback(handler.release)
        write_last()
        for handler in handlers:
            handler.setStream(io.StringIO())
