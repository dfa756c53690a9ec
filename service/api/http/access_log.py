"""The outermost middleware: gives a request an id, a trace, a log line, a count, and an answer if its handler fails."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.http.call import CALL, Call, header
from service.api.http.errors import is_anthropic, respond
from service.api.http.ignored import HEADER
from service.api.http.probes import METRICS_PATHS, PROBE_PATHS
from service.errors import ClientDisconnected, Draining
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
MAX_HEADER_CHARS = 256  # of a client's header in the log
# A failing probe only repeats what the start or the engine has logged.
UNLOGGED_PATHS = PROBE_PATHS | METRICS_PATHS


class AccessLog:
    """ASGI middleware; handlers add to the log line through `Call.log_fields`. Prompts are never logged."""

    def __init__(
        self, app: ASGIApp, *, metrics: Metrics, tracer: Tracer | None = None, strict_fields: bool = False
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._tracer = tracer
        self._strict_fields = strict_fields

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever the handler raises."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = scope.get(CALL)  # of a request that waited for a start, or of a batch
        if call is None:
            call = scope[CALL] = Call.of_client(scope)
        call.ignored.is_strict = self._strict_fields
        status = num_bytes = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status, num_bytes
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = call.id
                if is_anthropic(scope["path"]):
                    headers["request-id"] = call.id
                if call.ignored:
                    headers[HEADER] = str(call.ignored)
            num_bytes += len(message.get("body", b""))
            await send(message)

        trace = current_trace.set(call.trace)
        try:
            await self._app(scope, receive, send_with_id)
        except asyncio.CancelledError as error:
            if error.args == (ClientDisconnected.code,):
                return
            if status or call.is_background:
                raise
            await respond(Draining(), scope, send_with_id)  # the server cancels what outlives its drain
        except Exception as error:
            if status:
                raise  # too late for an answer: the server closes the connection and logs why
            await respond(error, scope, send_with_id)
        finally:
            call.release_models()
            self._record(call, scope, status or ClientDisconnected.status, num_bytes)
            current_trace.reset(trace)

    def _record(self, call: Call, scope: Scope, status: int, num_bytes: int) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        end_s = time.perf_counter()
        latency_s = end_s - call.arrived_s
        self._metrics.http_responses.labels(route, str(status)).inc()
        if (code := call.log_fields.get("error_code")) is not None:
            self._metrics.request_refusals.labels(code).inc()
        if call.ignored:
            call.ignored.count(self._metrics)
            call.log_fields["ignored"] = str(call.ignored)
        # A batch has its own log lines.
        is_detail = scope["path"] in UNLOGGED_PATHS or call.is_background
        if self._tracer is not None and not is_detail:
            self._tracer.record(request_span(call, scope["method"], route, status, end_s))
        level = logging.DEBUG if is_detail else logging.INFO
        if logger.isEnabledFor(level):
            facts = {"method": scope["method"], "route": route, "status": status, "latency_s": round(latency_s, 6)}
            facts |= {"request_id": call.id, **call.log_fields}
            request = http_request(scope, status, latency_s, num_bytes)
            logger.log(level, "request", extra={**facts, "http_request": request})


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
