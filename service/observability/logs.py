"""Log formats: JSON objects with Cloud Logging's keys, or readable text on a terminal.

Prompts, completions and keys are never logged.
Source: https://cloud.google.com/logging/docs/structured-logging (severity, httpRequest, logging.googleapis.com/…),
https://cloud.google.com/error-reporting/docs/formatting-error-messages (stack_trace, serviceContext, @type, context)
"""

import io
import logging
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, TextIO, override

from pythonjsonlogger.json import JsonFormatter

from service.observability.progress import CLEAR_LINE
from service.observability.trace_context import current_trace

ERROR_EVENT = "type.googleapis.com/google.devtools.clouderrorreporting.v1beta1.ReportedErrorEvent"
# For Cloud Logging only: on a terminal it would repeat other fields.
HTTP_REQUEST = "http_request"
# The attributes of any log record; all others come from `extra`.
_RECORD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}


@dataclass(frozen=True)
class Origin:
    """The service that writes the log, in Google Cloud's terms."""

    project_id: str | None = None  # turns trace ids into links
    service: str | None = None
    revision: str | None = None


class CloudJsonFormatter(JsonFormatter):
    """Formats records as lines of JSON with the keys that Cloud Logging and Error Reporting read."""

    def __init__(self, origin: Origin) -> None:
        super().__init__("%(message)s")
        self.converter = time.gmtime
        self._project_id = origin.project_id
        self._service = {"service": origin.service or "levserve"}
        if origin.revision is not None:
            self._service["version"] = origin.revision

    @override
    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        super().add_fields(log_data, record, message_dict)
        log_data["severity"] = record.levelname
        log_data["time"] = self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}Z"
        log_data["logger"] = record.name
        log_data.pop("color_message", None)
        log_data.pop("taskName", None)
        log_data["logging.googleapis.com/sourceLocation"] = {
            "file": record.pathname,
            "line": str(record.lineno),
            "function": record.funcName,
        }
        if (request := log_data.pop(HTTP_REQUEST, None)) is not None:
            log_data["httpRequest"] = request
        if (trace := current_trace.get()) is not None:
            name = (
                trace.trace_id if self._project_id is None else f"projects/{self._project_id}/traces/{trace.trace_id}"
            )
            log_data["logging.googleapis.com/trace"] = name
            log_data["logging.googleapis.com/trace_sampled"] = trace.is_sampled
            if trace.span_id is not None:
                log_data["logging.googleapis.com/spanId"] = trace.span_id
        self._add_error(log_data, record)

    def _add_error(self, log_data: dict[str, Any], record: logging.LogRecord) -> None:
        if (stack_trace := log_data.pop("exc_info", None)) is not None:
            log_data["stack_trace"] = stack_trace
        if record.levelno < logging.ERROR:
            return
        log_data["serviceContext"] = self._service
        if stack_trace is None:  # without one, Error Reporting needs the type and the location
            location = {"filePath": record.pathname, "lineNumber": record.lineno, "functionName": record.funcName}
            log_data |= {"@type": ERROR_EVENT, "context": {"reportLocation": location}}


class TerminalFormatter(logging.Formatter):
    """Formats records as `12:00:01 INFO  message  key=value`."""

    def __init__(self, before: str = "") -> None:
        """Create a formatter that starts each record with `before`, such as an escape sequence to clear the line."""
        super().__init__()
        self._before = before

    @override
    def format(self, record: logging.LogRecord) -> str:
        if HTTP_REQUEST in vars(record):
            return f"{self._before}{self.formatTime(record, '%H:%M:%S')} {_request_line(vars(record))}"
        extra = {k: v for k, v in vars(record).items() if k not in _RECORD_ATTRIBUTES and k != HTTP_REQUEST}
        fields = "".join(f"  {key}={_short(value)}" for key, value in extra.items())
        line = (
            f"{self._before}{self.formatTime(record, '%H:%M:%S')} {record.levelname:<7} {record.getMessage()}{fields}"
        )
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _request_line(facts: dict[str, Any]) -> str:
    """Return a request in one line: method, path, status, seconds, tokens, model, and what went wrong."""
    request = facts[HTTP_REQUEST]
    # Defends against T24.
    path = "".join(character if character.isprintable() else "?" for character in request["requestUrl"])
    parts = [request["requestMethod"], path, str(request["status"]), f"{facts['latency_s']:.2f} s"]
    if "prompt_tokens" in facts:
        parts.append(f"{facts['prompt_tokens']}+{facts.get('completion_tokens', 0)} tokens")
    parts += [str(facts[name]) for name in ("model", "error_code") if name in facts]
    parts += [f"ignored: {facts['ignored']}"] if "ignored" in facts else []
    return " ".join(parts)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def configure_logging(
    level: str,
    log_format: Literal["auto", "json", "text"],
    stream: TextIO = sys.stdout,
    *,
    origin: Origin = Origin(),
) -> None:
    """Write all records of this process, including uvicorn's, to `stream` in one format."""
    is_text = log_format == "text" or (log_format == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    if is_text:
        handler.setFormatter(TerminalFormatter(CLEAR_LINE if stream.isatty() else ""))
    else:
        handler.setFormatter(CloudJsonFormatter(origin))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # These libraries log every HTTP call or compilation at INFO; LOG_LEVEL applies to the service.
    for noisy in ("httpx", "httpcore", "urllib3", "google", "filelock", "jax", "jaxlib", "absl", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(level)))


def end_logging(write_last: Callable[[], None]) -> None:
    """Make the records of `write_last` the last of this process, and drop other threads' records from then on."""
    with ExitStack() as locks:
        handlers = [handler for handler in logging.getLogger().handlers if isinstance(handler, logging.StreamHandler)]
        for handler in handlers:
            handler.acquire()
            locks.callback(handler.release)
            handler.flush()  # makes room for the last lines
        write_last()
        for handler in handlers:
            handler.setStream(io.StringIO())
