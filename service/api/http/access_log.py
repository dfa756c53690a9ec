"""The outermost middleware: gives a request an id, a trace, a log line, a count, and an answer if its handler fails."""

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.http.background import BACKGROUND
from service.api.http.errors import is_anthropic, respond
from service.api.http.identity import http_request, request_id_of, trace_of
from service.api.http.ignored import HEADER, IgnoredFields
from service.api.http.probes import METRICS_PATHS, PROBE_PATHS
from service.api.http.span import request_span
from service.errors import ClientDisconnected, Draining
from service.observability.metrics import Metrics
from service.observability.trace_context import current_trace

if TYPE_CHECKING:
    from service.observability.tracing import Tracer

logger = logging.getLogger(__name__)

# A failing probe only repeats what the start or the engine has logged.
UNLOGGED_PATHS = PROBE_PATHS | METRICS_PATHS


class AccessLog:
    """ASGI middleware; handlers add fields to the log line through `state["log_fields"]`. Prompts are never logged."""

    def __init__(
        self, app: ASGIApp, *, metrics: Metrics, tracer: "Tracer | None" = None, strict_fields: bool = False
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
        state = scope.setdefault("state", {})
        if "request_id" not in state:  # a request that waited for a start has had both since it arrived
            state.update(request_id=request_id_of(scope), arrived_s=time.perf_counter())
        request_id, begin_s = state["request_id"], state["arrived_s"]
        state["log_fields"], state["clocks"] = {}, []
        ignored = state["ignored"] = IgnoredFields(is_strict=self._strict_fields)
        status = num_bytes = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status, num_bytes
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                if is_anthropic(scope["path"]):
                    headers["request-id"] = request_id
                if ignored:
                    headers[HEADER] = str(ignored)
            num_bytes += len(message.get("body", b""))
            await send(message)

        trace = current_trace.set(trace_of(scope))
        try:
            await self._app(scope, receive, send_with_id)
        except asyncio.CancelledError as error:
            if error.args == (ClientDisconnected.code,):
                return
            if status or BACKGROUND in scope:
                raise
            await respond(Draining(), scope, send_with_id)  # the server cancels what outlives its drain
        except Exception as error:
            if status:
                raise  # too late for an answer: the server closes the connection and logs why
            await respond(error, scope, send_with_id)
        finally:
            self._record(scope, status or ClientDisconnected.status, begin_s, num_bytes)
            current_trace.reset(trace)

    def _record(self, scope: Scope, status: int, begin_s: float, num_bytes: int) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        state, end_s = scope["state"], time.perf_counter()
        latency_s = end_s - begin_s
        self._metrics.http_responses.labels(route, str(status)).inc()
        if (code := state["log_fields"].get("error_code")) is not None:
            self._metrics.request_refusals.labels(code).inc()
        if ignored := state["ignored"]:
            ignored.count(self._metrics)
            state["log_fields"]["ignored"] = str(ignored)
        # A batch has its own log lines.
        is_detail = scope["path"] in UNLOGGED_PATHS or BACKGROUND in scope
        if self._tracer is not None and not is_detail:
            self._tracer.record(request_span(scope, route, status, begin_s, end_s))
        level = logging.DEBUG if is_detail else logging.INFO
        if logger.isEnabledFor(level):
            facts = {"method": scope["method"], "route": route, "status": status, "latency_s": round(latency_s, 6)}
            facts |= {"request_id": state["request_id"], **state["log_fields"]}
            request = http_request(scope, status, latency_s, num_bytes)
            logger.log(level, "request", extra={**facts, "http_request": request})
