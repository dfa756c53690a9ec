"""Parsing of the trace context that a client sends with its request.

Source: https://www.w3.org/TR/trace-context/#traceparent-header (traceparent),
https://cloud.google.com/trace/docs/trace-context#legacy-http-header (X-Cloud-Trace-Context)
"""

import re
from contextvars import ContextVar
from dataclasses import dataclass

_W3C = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_CLOUD = re.compile(r"([0-9a-fA-F]{32})(?:/([0-9]{1,20}))?(?:;o=([0-9]))?")
_FORBIDDEN_VERSION = "ff"
_SAMPLED = 1  # a bit of the flags
_MAX_SPAN = 2**64


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The sender's span, the parent of the request's span."""

    trace_id: str  # 32 hexadecimal digits
    span_id: str | None  # 16 hexadecimal digits
    is_sampled: bool


# The trace of the request in this context.
current_trace: ContextVar[TraceContext | None] = ContextVar("current_trace", default=None)


def parse_trace_context(traceparent: str, cloud_trace: str) -> TraceContext | None:
    """Parse the headers of W3C and Google Cloud, in this order of precedence; return None if both are malformed.

    Args:
        traceparent: `00-TRACE-SPAN-FLAGS`.
        cloud_trace: `TRACE/SPAN;o=OPTIONS`, with a decimal span id.
    """
    return _parse_w3c(traceparent) or _parse_google(cloud_trace)


def _parse_w3c(header: str) -> TraceContext | None:
    match = _W3C.fullmatch(header)
    if match is None or match[1] == _FORBIDDEN_VERSION or (match[1] == "00" and match[5] is not None):
        return None
    if not int(match[2], 16) or not int(match[3], 16):
        return None
    return TraceContext(match[2], match[3], bool(int(match[4], 16) & _SAMPLED))


def _parse_google(header: str) -> TraceContext | None:
    match = _CLOUD.fullmatch(header)
    if match is None or not int(match[1], 16):
        return None
    span = int(match[2] or 0)
    span_id = f"{span:016x}" if 0 < span < _MAX_SPAN else None
    return TraceContext(match[1].lower(), span_id, bool(int(match[3] or 0) & _SAMPLED))
