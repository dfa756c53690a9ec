"""What holds the port from the first moment: health, early requests and /admin/stats, then the door to the API.

FastAPI takes longer to import than a platform should wait for an open port, so nothing here needs it. Once the API is
there, everything but /admin goes to it.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol, runtime_checkable

from service.api.probes import LIVE_PATH, READY_PATHS, Answer, Probed, error_answer, live_answer, ready_answer
from service.errors import InvalidApiKey, NotReady, UnknownRoute
from service.observability.metrics import Metrics

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

STATS_PATH = "/admin/stats"
OPEN_PATHS = READY_PATHS | {LIVE_PATH, "/metrics"}


@runtime_checkable
class Fronted(Probed, Protocol):
    """The service behind the door."""

    @property
    def api(self) -> Asgi | None:
        """The API, once it is imported."""
        ...

    @property
    def decided(self) -> asyncio.Event:
        """Set on the event loop once it is known whether requests will be answered."""
        ...

    def summary(self) -> str:
        """Return the progress in one phrase."""
        ...

    def stats(self) -> dict[str, Any]:
        """Return what /admin/stats tells."""
        ...


class Front:
    """An ASGI app."""

    def __init__(
        self,
        service: Fronted,
        metrics: Metrics,
        *,
        admin_keys: tuple[str, ...] = (),
        max_waiting: int = 0,
        wait_s: float = 0.0,
    ) -> None:
        """Open the door.

        Args:
            service: what is behind it.
            metrics: where the answers given here are counted.
            admin_keys: open /admin/stats; with none there is no such route.
            max_waiting: how many early requests may wait for the model; the others are refused at once.
            wait_s: how long.
        """
        self._service = service
        self._metrics = metrics
        self._admin_digests = [hashlib.sha256(key.encode()).digest() for key in admin_keys]
        self._max_waiting = max_waiting
        self._wait_s = wait_s
        self._num_waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or let it through."""
        is_admin = scope["type"] == "http" and scope["path"].startswith("/admin/")
        if is_admin and scope["path"] == STATS_PATH:
            await self._send(scope, send, self._stats(scope))
            return
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            await self._wait()
        api = self._service.api
        if api is not None:
            await api(scope, receive, send)
        elif scope["type"] == "http":
            await self._send(scope, send, self._early(scope["path"]))

    async def _wait(self) -> None:
        """Hold an early request back until the model is there or has failed, if there is room for it."""
        if self._service.decided.is_set() or self._num_waiting >= self._max_waiting:
            return
        self._num_waiting += 1
        try:
            async with asyncio.timeout(self._wait_s):
                await self._service.decided.wait()
        except TimeoutError:
            logger.debug("an early request waited in vain")
        finally:
            self._num_waiting -= 1

    def _early(self, path: str) -> Answer:
        if path == LIVE_PATH:
            return live_answer(self._service)
        if path in READY_PATHS:
            return ready_answer(self._service)
        return error_answer(NotReady(self._service.summary()))

    def _stats(self, scope: Scope) -> Answer:
        if not self._admin_digests:
            return error_answer(UnknownRoute("There is no such route; ADMIN_API_KEY opens it."))
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1 or not self._is_allowed(given[0]):
            answer = error_answer(InvalidApiKey(is_missing=not given))
            return answer._replace(headers={"www-authenticate": "Bearer"})
        return Answer(200, self._service.stats(), {})

    def _is_allowed(self, authorization: bytes) -> bool:
        """Compare digests, in constant time."""
        scheme, _, key = authorization.partition(b" ")
        digest = hashlib.sha256(key.strip()).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._admin_digests]
        return scheme.lower() == b"bearer" and any(matches)

    async def _send(self, scope: Scope, send: Send, answer: Answer) -> None:
        route = scope["path"] if scope["path"] in OPEN_PATHS | {STATS_PATH} else "early"
        self._metrics.http_responses.labels(route, str(answer.status)).inc()
        request_id = f"req_{uuid.uuid4().hex}"
        facts = {"method": scope["method"], "route": route, "status": answer.status, "request_id": request_id}
        logger.log(logging.DEBUG if route in OPEN_PATHS else logging.INFO, "request", extra=facts)
        body = json.dumps(answer.body, default=str).encode()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "x-request-id": request_id,
            **answer.headers,
        }
        # The body of an early request was not read, so the connection is of no further use.
        if answer.status >= 400:
            headers["connection"] = "close"
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": encoded})
        is_head = scope["method"] == "HEAD"
        await send({"type": "http.response.body", "body": b"" if is_head else body})
