"""The outermost middleware: gives every request an id, a trace, a log line, a count, and an answer if a handler fails.

Source: https://cloud.google.com/trace/docs/trace-context (X-Cloud-Trace-Context), https://www.w3.org/TR/trace-context/
"""

import asyncio
import logging
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.http.background import background_of
from service.api.http.errors import respond
from service.api.http.probes import PROBE_PATHS
from service.errors import ClientDisconnected, Draining
from service.observability.logs import current_trace
from service.observability.metrics import Metrics

logger = logging.getLogger(__name__)

CLIENT_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
CLOUD_TRACE = re.compile(r"([0-9a-fA-F]{32})(?:/|;|$)")
W3C_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-")


class AccessLog:
    """ASGI middleware; handlers add fields to the log line through `state["log_fields"]`. Prompts are never logged."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, project_id: str | None) -> None:
        self._app = app
        self._metrics = metrics
        self._project_id = project_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever the handler raises."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id = _request_id(headers)
        state["log_fields"] = {}
        begin_s = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        trace = current_trace.set(self._trace(headers))
        try:
            await self._app(scope, receive, send_with_id)
        except asyncio.CancelledError:
            if status or background_of(scope) is not None:
                raise
            await respond(Draining(), scope, send_with_id)  # the server cancels what outlives its drain
        except Exception as error:
            if status:
                raise  # too late for an answer: the server closes the connection and logs why
            await respond(error, scope, send_with_id)
        finally:
            self._record(scope, status or ClientDisconnected.status, time.perf_counter() - begin_s)
            current_trace.reset(trace)

    def _record(self, scope: Scope, status: int, latency_s: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        self._metrics.http_responses.labels(route, str(status)).inc()
        # A failing probe only repeats what the start or the engine has logged, and a batch has its own log lines.
        is_detail = scope["path"] in PROBE_PATHS or background_of(scope) is not None
        fields = {"method": scope["method"], "route": route, "status": status, "latency_s": round(latency_s, 6)}
        logger.log(
            logging.DEBUG if is_detail else logging.INFO,
            "request",
            extra=fields | {"request_id": scope["state"]["request_id"]} | scope["state"]["log_fields"],
        )

    def _trace(self, headers: Headers) -> str | None:
        match = CLOUD_TRACE.match(headers.get("x-cloud-trace-context", ""))
        match = match or W3C_TRACE.match(headers.get("traceparent", ""))
        if match is None:
            return None
        return f"projects/{self._project_id}/traces/{match[1]}" if self._project_id else match[1]


def _request_id(headers: Headers) -> str:
    """Return the client's id if it is safe to log, or a new one."""
    given = headers.get("x-request-id", "")
    return given if CLIENT_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
