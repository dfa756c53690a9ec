"""The objects that handlers work with, and the FastAPI dependencies that provide them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread
from fastapi import Request as HttpRequest
from starlette.types import Receive

from service.api.http.auth import CACHE_SALT
from service.api.http.cancellation import Deadline
from service.api.http.probes import Readiness
from service.api.served_model import ServedModel
from service.observability.metrics import Metrics

# Threads that tokenize and render; each may occupy a core, which the device thread needs too.
MAX_TEXT_THREADS = 4


@dataclass(frozen=True)
class ApiContext:
    """State that all requests share."""

    readiness: Readiness
    metrics: Metrics
    request_timeout_s: float
    default_max_tokens: int | None
    default_temperature: float | None
    text_threads: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(MAX_TEXT_THREADS))


@dataclass(frozen=True)
class RequestContext:
    """State of one HTTP request while it is answered."""

    api: ApiContext
    model: ServedModel
    deadline: Deadline
    receive: Receive  # after the body, it returns when the client disconnects
    log_fields: dict[str, Any]  # added to the request's log line
    cache_salt: bytes = b""  # only requests with the same key share cached prefixes

    async def run_in_thread[T](self, work: Callable[[], T]) -> T:
        """Run work that may take long, such as tokenizing, without blocking the event loop.

        Raises:
            DeadlineExceeded: the request's time is over; the thread ends by its own limits.
        """
        return await self.deadline.within(
            anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self.api.text_threads)
        )


async def api_context(request: HttpRequest) -> ApiContext:
    """Return the state that all requests share."""
    return request.app.state.context


async def served_model(request: HttpRequest) -> ServedModel:
    """Return the model that answers.

    Raises:
        NotReady, Draining, EngineStopped: no model can answer now.
    """
    return request.app.state.context.readiness.served_model()


async def request_context(request: HttpRequest) -> RequestContext:
    """Start a request's deadline and return its context.

    Raises:
        NotReady, Draining, EngineStopped: no model can answer now.
    """
    api = await api_context(request)
    model = api.readiness.served_model()
    deadline = Deadline(api.request_timeout_s)
    salt = request.scope.get(CACHE_SALT, b"")
    return RequestContext(api, model, deadline, request.receive, request.state.log_fields, salt)
