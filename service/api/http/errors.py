"""Exceptions to OpenAI's error bodies, before a response and inside a stream: the only place that does so.

What went wrong inside is told to the log, and to the client only as a fixed sentence and the request's id.
Source: https://platform.openai.com/docs/guides/error-codes
"""

import logging
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from service.errors import BrokenScores, EngineError, EngineStopped, MethodNotAllowed, RequestError, UnknownRoute

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 2
# Nobody will read the rest of the body.
CLOSING_STATUSES = frozenset({401, 408, 413, 415})


class Failure(NamedTuple):
    """An error as it goes over the wire."""

    status: int
    body: dict[str, dict[str, str | None]]
    headers: dict[str, str]


def failure_of(error: Exception, scope: Scope) -> Failure:
    """Return the wire form of any exception, and log those that are our fault."""
    request_id = scope["state"]["request_id"]
    if isinstance(error, RequestError):
        status, fields = error.status, (error.message, error.type, error.param, error.code)
    else:
        logger.error("request failed", exc_info=error, extra={"request_id": request_id})
        status, fields = _our_fault(error, request_id)
    scope["state"]["facts"]["error_code"] = fields[3]
    headers: dict[str, str] = {}
    if status in (429, 503):
        headers["retry-after"] = str(getattr(error, "retry_after_s", None) or RETRY_AFTER_S)
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if status in CLOSING_STATUSES:
        headers["connection"] = "close"
    return Failure(status, {"error": dict(zip(("message", "type", "param", "code"), fields, strict=True))}, headers)


async def respond(error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request with an error, from outside the handlers."""
    failure = failure_of(error, scope)
    await JSONResponse(failure.body, failure.status, failure.headers)(scope, receive, send)


def install(app: FastAPI) -> None:
    """Make an app answer every error that a handler can raise on purpose."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        failure = failure_of(error, request.scope)
        return JSONResponse(failure.body, failure.status, failure.headers)

    async def answer_routing(request: Request, error: Exception) -> JSONResponse:
        response = await answer(request, _routing_error(error))
        response.headers.update(getattr(error, "headers", None) or {})  # Allow
        return response

    app.add_exception_handler(RequestError, answer)
    app.add_exception_handler(EngineError, answer)
    app.add_exception_handler(HTTPException, answer_routing)


def _our_fault(error: Exception, request_id: str) -> tuple[int, tuple[str, str, None, str]]:
    if isinstance(error, EngineStopped):
        message = f"The engine has stopped; this instance is being replaced. Request id: {request_id}."
        return error.status, (message, error.type, None, error.code)
    if isinstance(error, BrokenScores):
        return error.status, (f"{error} Request id: {request_id}.", error.type, None, error.code)
    if isinstance(error, EngineError):
        return error.status, (f"The engine failed. Request id: {request_id}.", error.type, None, error.code)
    return 500, (f"The server had an error. Request id: {request_id}.", "server_error", None, "internal_error")


def _routing_error(error: Any) -> Exception:
    match error.status_code:
        case 404:
            return UnknownRoute("There is no such route. The routes are those of OpenAI's API, under /v1.")
        case 405:
            return MethodNotAllowed("This route does not allow this method.")
        case _:
            return error
