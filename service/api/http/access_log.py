"""Each request's id, log line, counts and span."""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.http.call import CALL, Call, call_of, header
from service.api.http.errors import is_anthropic
from service.api.http.probes import METRICS_PATHS, PROBE_PATHS
from service.errors import ClientDisconnected
from service.observability.clock import Clock
from service.observability.metrics import Metrics
from service.observability.trace_context import current_trace
from service.observability.tracing import RequestSpan, Tracer

logger = logging.getLogger(__name__)

# OpenTelemetry's names for facts of the log line.
ATTRIBUTES = {
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "finish_reason": "gen_ai.response.finish_reasons",
    "cached_tokens": "levserve.cached_tokens",
    "error_code": "error.type",
}
_NAMED_PATH = re.compile(r"(/.*?/(?:models|load|unload)/)(.*)", re.DOTALL)
IGNORED_HEADER = b"x-levserve-ignored"
MAX_HEADER_CHARS = 256  # of a client's header in the log
# A failing probe only repeats what the start or the engine has logged.
UNLOGGED_PATHS = PROBE_PATHS | METRICS_PATHS


class AccessLog:
    """The outermost ASGI middleware: makes the call of each request, and counts, logs and traces its answer.

    Prompts are never logged.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        strict_fields: bool = False,
        aliases: Mapping[str, str] = {},
        tracer: Callable[[], Tracer | None] = lambda: None,
    ) -> None:
        """Wrap an app.

        Args:
            app: what answers.
            metrics: the series that answers are counted in.
            strict_fields: whether a field that has no effect is refused instead of accepted and named.
            aliases: paths that a platform has given to routes.
            tracer: returns what gets the spans of the API's requests, once it is imported; None for no traces.
        """
        self._app = app
        self._metrics = metrics
        self._strict_fields = strict_fields
        self._aliases = aliases
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = tidy_path(scope["path"])
        scope["path"] = self._aliases.get(path, path)
        if CALL not in scope:  # as that of a batch is
            scope[CALL] = Call.of_client(scope)
        call = call_of(scope)
        call.ignored.is_strict = self._strict_fields
        num_bytes = 0

        async def send_with_id(message: Message) -> None:
            nonlocal num_bytes
            if message["type"] == "http.response.start":
                call.status = message["status"]
                message = {**message, "headers": [*message["headers"], *_own_headers(call, scope["path"])]}
            num_bytes += len(message.get("body", b""))
            await send(message)

        trace = current_trace.set(call.trace)
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            call.release_models()
            self._record(call, scope, num_bytes)
            current_trace.reset(trace)

    def _record(self, call: Call, scope: Scope, num_bytes: int) -> None:
        route = call.route or getattr(scope.get("route"), "path", "unmatched")
        status, end_s = call.status or ClientDisconnected.status, time.perf_counter()
        latency_s = end_s - call.arrived_s
        self._metrics.http_responses.labels(route, str(status)).inc()
        if (code := call.log_fields.get("error_code")) is not None:
            self._metrics.request_refusals.labels(code).inc()
        if call.ignored:
            call.ignored.count(self._metrics)
            call.log_fields["ignored"] = str(call.ignored)
        # A batch has its own log lines.
        is_detail = scope["path"] in UNLOGGED_PATHS or call.is_background
        if not is_detail and call.route is None and (tracer := self._tracer()) is not None:
            tracer.record(request_span(call, scope["method"], route, status, end_s))
        level = logging.DEBUG if is_detail else logging.INFO
        if logger.isEnabledFor(level):
            facts = {"method": scope["method"], "route": route, "status": status, "latency_s": round(latency_s, 6)}
            facts |= {"request_id": call.id, **call.log_fields}
            request = http_request(scope, status, latency_s, num_bytes)
            logger.log(level, "request", extra={**facts, "http_request": request})


def tidy_path(path: str) -> str:
    """Return a path without slashes that say nothing, as clients join addresses; a model's name keeps its own."""
    if "//" not in path and not path.endswith("/"):
        return path
    named = _NAMED_PATH.match(path)
    head, name = (path, "") if named is None else named.groups()
    tidy = (re.sub("/{2,}", "/", head) + name.strip("/")).rstrip("/") or "/"
    return path if tidy in PROBE_PATHS else tidy  # only which need no key


def _own_headers(call: Call, path: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of every answer: the request's id, and the fields that had no effect."""
    names = (b"x-request-id", b"request-id") if is_anthropic(path) else (b"x-request-id",)
    headers = [(name, call.id.encode()) for name in names]
    return [*headers, (IGNORED_HEADER, str(call.ignored).encode())] if call.ignored else headers


def http_request(scope: Scope, status: int, latency_s: float, response_bytes: int) -> dict[str, Any]:
    """Return a request as Cloud Logging describes one; a query is left out, since it may hold anything.

    Source: https://cloud.google.com/logging/docs/reference/v2/rest/v2/LogEntry#HttpRequest (64-bit integers and
    durations are strings)
    """
    client = scope.get("client")
    optional = {
        "requestSize": header(scope, b"content-length"),
        "userAgent": header(scope, b"user-agent"),
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


def request_span(call: Call, method: str, route: str, status: int, end_s: float) -> RequestSpan:
    """Return the span of a request whose answer ended at `end_s`: its facts, and the stages of its sequences.

    Source: https://opentelemetry.io/docs/specs/semconv/http/http-spans/, .../gen-ai/gen-ai-spans/ (attributes)
    """
    facts = {ATTRIBUTES[name]: value for name, value in call.log_fields.items() if name in ATTRIBUTES}
    attributes = {
        "http.request.method": method,
        "http.route": route,
        "http.response.status_code": status,
        "levserve.request_id": call.id,
        **facts,
    }
    stages = _stages(call.clocks)
    return RequestSpan(f"{method} {route}", call.trace, call.arrived_s, end_s, status, attributes, stages)


def _stages(clocks: Sequence[Clock]) -> dict[str, tuple[float, float]]:
    """Return the stages that all sequences together went through, as far as they got."""
    moments = [
        min((clock.submitted_s for clock in clocks), default=None),
        max((clock.scheduled_s for clock in clocks if clock.scheduled_s is not None), default=None),
        max((clock.first_token_s for clock in clocks if clock.first_token_s is not None), default=None),
        max((clock.last_token_s for clock in clocks if clock.last_token_s is not None), default=None),
    ]
    spans = zip(("queue", "prefill", "decode"), moments[:-1], moments[1:], strict=True)
    return {name: (begin, end) for name, begin, end in spans if begin is not None and end is not None}
