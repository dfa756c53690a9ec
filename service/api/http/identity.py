"""The identity of a request in logs and traces: an id, the sender's trace, and Cloud Logging's description of it."""

import re
import uuid
from typing import Any

from starlette.types import Scope

from service.observability.trace_context import TraceContext, parse_trace_context

CLIENT_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
MAX_HEADER_CHARS = 256  # of a client's header in the log


def request_id_of(scope: Scope) -> str:
    """Return the client's id if it is safe to log, or a new one."""
    given = _header(scope, b"x-request-id")
    return given if CLIENT_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"


def trace_of(scope: Scope) -> TraceContext | None:
    """Return the trace that the sender names."""
    standard, cloud = _header(scope, b"traceparent"), _header(scope, b"x-cloud-trace-context")
    return parse_trace_context(standard, cloud) if standard or cloud else None


def http_request(scope: Scope, status: int, latency_s: float, response_bytes: int) -> dict[str, Any]:
    """Return a request as Cloud Logging describes one; a query is left out, since it may hold anything.

    Source: https://cloud.google.com/logging/docs/reference/v2/rest/v2/LogEntry#HttpRequest (64-bit integers and
    durations are strings)
    """
    client = scope.get("client")
    optional = {
        "requestSize": _header(scope, b"content-length"),
        "userAgent": _header(scope, b"user-agent"),
        "remoteIp": client[0] if client else "",
    }
    return {
        "requestMethod": scope["method"],
        "requestUrl": scope["path"][:MAX_HEADER_CHARS],
        "status": status,
        "responseSize": str(response_bytes),
        "latency": f"{latency_s:.6f}s",
        "protocol": f"HTTP/{scope.get('http_version', '1.1')}",
        **{name: value[:MAX_HEADER_CHARS] for name, value in optional.items() if value},
    }


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")
