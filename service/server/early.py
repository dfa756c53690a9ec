"""The ASGI app that holds the port from the first moment, and passes requests on once the API is imported.

FastAPI takes longer to import than a platform should wait for an open port, so health checks, early requests, the
operator's routes and the pages are answered without it. Once the API is there, all but the last two go to it.
"""

import asyncio

from starlette.types import Receive, Scope, Send

from service.api.http.auth import check_key
from service.api.http.call import Call, call_of
from service.api.http.errors import respond, send_answer
from service.api.http.keys import ApiKeys
from service.api.http.probes import LIVE_PATH, METRICS_PATHS, PROBE_PATHS, live_answer, ready_answer
from service.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    Draining,
    EngineError,
    NotReady,
    QueueTimeout,
    RequestError,
    UnknownRoute,
)
from service.server.admin import ADAPTER_PATHS, PREFIX, STATS_PATHS, AdminRoutes, admin_route
from service.server.pages import FONTS, PAGES, send_page
from service.server.service import Service

# These are answered at once, whatever the state of the start.
IMMEDIATE_PATHS = PROBE_PATHS | METRICS_PATHS
NO_KEYS = ApiKeys()


class EarlyAnswers:
    """The ASGI app behind the access log."""

    def __init__(
        self,
        service: Service,
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
            keys: an early request waits with one of these; if empty, with none.
            admin_keys: each of these opens the operator's routes; if empty, they do not exist.
            has_pages: whether the pages exist.
            has_metrics: whether /metrics exists.
            max_waiting: early requests that may wait for the model at once; others are refused.
            wait_s: the time of a whole request, which its wait is part of.
            queue_timeout_s: the same for its wait only; None for no limit of its own.
        """
        self._service = service
        self._keys, self._admin = keys, AdminRoutes(service, admin_keys)
        self._has_pages = has_pages
        self._has_metrics = has_metrics
        self._max_waiting = max_waiting
        self._wait_s, self._queue_timeout_s = wait_s, queue_timeout_s
        self._num_waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on to the API."""
        if self._is_for_api(scope):
            await self._pass_on(scope, receive, send)
        elif scope["type"] == "http" and not await self._is_answered(scope, receive, send):
            await self._answer_early(scope, receive, send)

    def _is_for_api(self, scope: Scope) -> bool:
        """Return whether the API is imported and answers a request at once."""
        path, service = scope.get("path", ""), self._service
        if service.api is None or scope["type"] != "http":
            return service.api is not None
        if path in IMMEDIATE_PATHS:
            return path not in METRICS_PATHS or self._has_metrics
        is_own = self._page_route(path) is not None or path in STATS_PATHS | ADAPTER_PATHS or path.startswith(PREFIX)
        return service.decided.is_set() and not service.is_draining and not is_own

    async def _is_answered(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer a request that needs no API; return False for any other."""
        call, path = call_of(scope), scope["path"]
        page = self._page_route(path)
        call.route = path if path in IMMEDIATE_PATHS else page or admin_route(path) or "early"
        try:
            if admin_route(path) is not None:
                await send_answer(await self._admin.answer(scope, receive), scope, send)
            elif page is not None:
                await send_page(path, scope, send)
            elif path in METRICS_PATHS and not self._has_metrics:
                raise UnknownRoute("There is no such route: ENABLE_METRICS is false.")
            elif path in PROBE_PATHS:
                answer = (live_answer if path == LIVE_PATH else ready_answer)(self._service)
                await send_answer(answer, scope, send)
            else:
                return False
        except (RequestError, EngineError) as error:
            await respond(error, scope, send, closes=True)
        return True

    async def _answer_early(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an early request on to the API once it can answer, or say why it cannot."""
        call = call_of(scope)
        self._service.num_early += 1
        try:
            await self._wait(call, scope)
        except (RequestError, EngineError) as error:
            await respond(error, scope, send, closes=True)
        else:
            call.route = None  # the API's own
            await self._pass_on(scope, receive, send)
        finally:
            self._service.num_early -= 1

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._service.api is not None, "what the API answers waits for it"
        await self._service.api(scope, receive, send)

    def _page_route(self, path: str) -> str | None:
        """Return the route of a page or of their fonts; None of another path."""
        if not self._has_pages:
            return None
        return FONTS if path.startswith(FONTS) else path if path in PAGES else None

    async def _wait(self, call: Call, scope: Scope) -> None:
        """Delay an early request until the start has succeeded or failed, if there is room for it to wait.

        Raises:
            NotReady, Draining: the API cannot answer it.
            InvalidApiKey: it may not wait.
            QueueTimeout, DeadlineExceeded: it has waited too long.
            ClientDisconnected: its client has left.
        """
        if not self._service.decided.is_set() and self._num_waiting < self._max_waiting:
            check_key(call, scope, self._keys)
            call.task = asyncio.current_task()
            self._num_waiting += 1
            try:
                async with asyncio.timeout(min(self._wait_s, self._queue_timeout_s or self._wait_s)):
                    await self._service.decided.wait()
            except TimeoutError:
                if self._queue_timeout_s is not None and self._queue_timeout_s < self._wait_s:
                    raise QueueTimeout(self._queue_timeout_s) from None
                raise DeadlineExceeded(self._wait_s) from None
            except asyncio.CancelledError:
                if call.has_left:
                    raise ClientDisconnected from None
                raise
            finally:
                self._num_waiting -= 1
        if self._service.is_draining:
            raise Draining
        if self._service.api is None:
            raise NotReady(self._service.summary())
