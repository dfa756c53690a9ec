"""The ASGI app that holds the port from the first moment, and passes requests on once the API is imported.

FastAPI takes longer to import than a platform should wait for an open port, so health checks, early requests, the
operator's routes and the pages are answered without it. Once the API is there, all but the last two go to it.
"""

import asyncio
import logging
import time

from starlette.types import Receive, Scope, Send

from service.api.http.access_log import http_request
from service.api.http.answer import Answer, send_answer
from service.api.http.call import CALL, Call, call_of
from service.api.http.errors import error_answer, in_shape_of_path, is_anthropic
from service.api.http.keys import ApiKeys
from service.api.http.probes import (
    LIVE_PATH,
    METRICS_PATHS,
    PROBE_PATHS,
    READY_PATHS,
    live_answer,
    ready_answer,
)
from service.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    Draining,
    InvalidApiKey,
    MethodNotAllowed,
    NotReady,
    QueueTimeout,
    RequestError,
    UnknownRoute,
)
from service.observability.metrics import Metrics
from service.observability.trace_context import current_trace
from service.server.admin import PREFIX, STATS_PATHS, AdminRoutes, admin_route
from service.server.pages import ALLOWED_METHODS, PAGES, send_page
from service.server.service import Service

logger = logging.getLogger(__name__)

# These are answered at once, whatever the state of the start.
IMMEDIATE_PATHS = PROBE_PATHS | METRICS_PATHS
NO_KEYS = ApiKeys()


class EarlyAnswers:
    """The outermost ASGI app."""

    def __init__(
        self,
        service: Service,
        metrics: Metrics,
        *,
        keys: ApiKeys = NO_KEYS,
        admin_keys: tuple[str, ...] = (),
        has_pages: bool = True,
        has_metrics: bool = True,
        max_waiting: int = 0,
        wait_s: float = 0.0,
        queue_timeout_s: float | None = None,
    ) -> None:
        """Create the app.

        Args:
            service: the service that starts.
            metrics: the series that count the answers given here.
            keys: an early request waits with one of these; if empty, with none.
            admin_keys: each of these opens the operator's routes; if empty, they do not exist.
            has_pages: whether the pages exist.
            has_metrics: whether /metrics exists.
            max_waiting: early requests that may wait for the model at once; others are refused.
            wait_s: the time of a whole request, which its wait is part of.
            queue_timeout_s: the same for its wait alone; None for no limit of its own.
        """
        self._service = service
        self._metrics = metrics
        self._api_keys, self._admin = keys, AdminRoutes(service, admin_keys)
        self._pages = PAGES if has_pages else {}
        self._has_metrics = has_metrics
        self._max_waiting = max_waiting
        self._wait_s, self._queue_timeout_s = wait_s, queue_timeout_s
        self._num_waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on to the API."""
        if (api := self._service.api) is not None and self._is_for_api(scope):
            await api(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        call = scope[CALL] = Call.of_client(scope)
        trace = current_trace.set(call.trace)
        try:
            await self._answer(scope, receive, send)
        finally:
            current_trace.reset(trace)

    def _is_for_api(self, scope: Scope) -> bool:
        """Return whether the API, once it is imported, answers a request at once."""
        if scope["type"] != "http":
            return True
        path, service = scope["path"], self._service
        if path in IMMEDIATE_PATHS:
            return path not in METRICS_PATHS or self._has_metrics
        is_own = path in self._pages or path in STATS_PATHS or path.startswith(PREFIX)
        return service.decided.is_set() and not service.is_draining and not is_own

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if admin_route(path) is not None:
            await self._send(await self._admin.answer(scope), scope, send)
            return
        if path in METRICS_PATHS and not self._has_metrics:
            refusal = UnknownRoute("There is no such route: ENABLE_METRICS is false.")
            await self._send(error_answer(refusal, ""), scope, send)
            return
        if path in self._pages:
            await self._page(scope, send)
            return
        if path not in IMMEDIATE_PATHS:
            refusal = await self._wait(scope)
            if refusal is None and self._service.is_draining:
                refusal = Draining()
            if refusal is not None:
                await self._send(error_answer(refusal, ""), scope, send)
                return
        if (api := self._service.api) is not None:
            await api(scope, receive, send)
        else:
            await self._send(self._early(scope), scope, send)

    async def _wait(self, scope: Scope) -> RequestError | None:
        """Delay an early request until the start has succeeded or failed, if there is room for it to wait.

        Returns:
            Why the request is refused, if it is.
        """
        if self._service.decided.is_set() or self._num_waiting >= self._max_waiting:
            return None
        if self._api_keys:
            try:
                self._api_keys.verify(scope)
            except InvalidApiKey as error:
                return error
        call_of(scope).task = asyncio.current_task()
        self._num_waiting += 1
        try:
            async with asyncio.timeout(min(self._wait_s, self._queue_timeout_s or self._wait_s)):
                await self._service.decided.wait()
        except TimeoutError:
            if self._queue_timeout_s is not None and self._queue_timeout_s < self._wait_s:
                return QueueTimeout(self._queue_timeout_s)
            return DeadlineExceeded(self._wait_s)
        except asyncio.CancelledError as error:
            if error.args == (ClientDisconnected.code,):
                return ClientDisconnected()
            raise
        finally:
            self._num_waiting -= 1
        return None

    def _early(self, scope: Scope) -> Answer:
        path = scope["path"]
        if path == LIVE_PATH:
            return live_answer(self._service)
        if path in READY_PATHS:
            return ready_answer(self._service)
        return error_answer(NotReady(self._service.summary()), call_of(scope).id)

    async def _page(self, scope: Scope, send: Send) -> None:
        if scope["method"] not in ALLOWED_METHODS:
            refusal = error_answer(MethodNotAllowed("This route does not allow this method."), "")
            await self._send(refusal._replace(headers={"allow": ", ".join(ALLOWED_METHODS)}), scope, send)
            return
        await send_page(scope["path"], self._record(scope, 200, {}), scope, send)

    async def _send(self, answer: Answer, scope: Scope, send: Send) -> None:
        error = answer.body.get("error") if answer.status >= 400 else None
        code = {"error_code": error["code"]} if isinstance(error, dict) else {}
        headers = self._record(scope, answer.status, code) | answer.headers
        if answer.status >= 400:  # the body of the request was not read, so the connection cannot be used again
            headers["connection"] = "close"
        if code:
            answer = in_shape_of_path(answer, scope)
        await send_answer(answer._replace(headers=headers), scope, send)

    def _record(self, scope: Scope, status: int, code: dict[str, str]) -> dict[str, str]:
        """Count and log an answer; return the header with its id."""
        call = call_of(scope)
        latency_s = time.perf_counter() - call.arrived_s
        path, known = scope["path"], IMMEDIATE_PATHS | self._pages.keys()
        route = path if path in known else admin_route(path) or "early"
        self._metrics.http_responses.labels(route, str(status)).inc()
        for reason in code.values():
            self._metrics.request_refusals.labels(reason).inc()
        facts = {"method": scope["method"], "route": route, "status": status, "latency_s": round(latency_s, 6)}
        facts |= {"request_id": call.id, **code, "http_request": http_request(scope, status, latency_s, 0)}
        logger.log(logging.DEBUG if route in IMMEDIATE_PATHS else logging.INFO, "request", extra=facts)
        names = ("x-request-id", "request-id") if is_anthropic(path) else ("x-request-id",)
        return dict.fromkeys(names, call.id)
