"""JSON answers over bare ASGI, and every error as one: OpenAI's, on other interfaces' paths as theirs.

Details of internal errors go to the log; the client gets a fixed sentence and the request's id.
Source: https://platform.openai.com/docs/guides/error-codes, https://docs.anthropic.com/en/api/errors,
https://github.com/ollama/ollama/blob/main/docs/errors.mdx
"""

import asyncio
import json
import logging
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.http.call import call_of
from service.errors import (
    Draining,
    EngineError,
    EngineStopped,
    MethodNotAllowed,
    NonFiniteLogits,
    NonFiniteVector,
    RequestError,
)

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 2
OLLAMA_PATHS = "/api/"
# The rest of the body stays unread, so the connection cannot be used again.
CLOSING_STATUSES = frozenset({401, 408, 413, 415, 429})

# Anthropic's types; of other statuses `invalid_request_error`, and `api_error` from 500 on.
ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class Answer(NamedTuple):
    """A JSON answer."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]  # without those of the content


def encoded(answer: Answer) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the headers and the body of an answer as bytes."""
    body = json.dumps(answer.body, ensure_ascii=False, separators=(",", ":"), default=str).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **answer.headers}
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()], body


async def send_answer(answer: Answer, scope: Scope, send: Send) -> None:
    """Send a whole answer; to HEAD, only the headers."""
    headers, body = encoded(answer)
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def is_anthropic(path: str) -> bool:
    """Return whether a path is of Anthropic's interface."""
    return path == ANTHROPIC_PATH or path.startswith(f"{ANTHROPIC_PATH}/")


def error_answer(error: Exception, request_id: str) -> Answer:
    """Return the answer that an error becomes, and log the error if the fault is the server's."""
    if isinstance(error, RequestError):
        status, fields = error.status, (error.message, error.type, error.param, error.code)
    else:
        logger.error("request failed", exc_info=error, extra={"request_id": request_id})
        status, fields = _server_error(error, request_id)
    headers: dict[str, str] = {}
    if status in (429, 503):
        headers["retry-after"] = str(getattr(error, "retry_after_s", None) or RETRY_AFTER_S)
    if isinstance(error, MethodNotAllowed) and error.allow is not None:
        headers["allow"] = error.allow
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if status in CLOSING_STATUSES or isinstance(error, Draining):
        headers["connection"] = "close"
    return Answer(status, {"error": dict(zip(("message", "type", "param", "code"), fields, strict=True))}, headers)


def logged_error_answer(error: Exception, scope: Scope) -> Answer:
    """Return the answer that an error becomes, and add its code to the request's log line."""
    call = call_of(scope)
    answer = error_answer(error, call.id)
    call.log_fields["error_code"] = answer.body["error"]["code"]
    return in_shape_of_path(answer, scope)


def in_shape_of_path(answer: Answer, scope: Scope) -> Answer:
    """Return an error as the interface of the request's path states it."""
    if is_anthropic(scope["path"]):
        return answer._replace(body=_as_anthropics(answer, call_of(scope).id))
    if scope["path"].startswith(OLLAMA_PATHS):
        return answer._replace(body={"error": answer.body["error"]["message"]})
    return answer


def _as_anthropics(answer: Answer, request_id: str) -> dict[str, Any]:
    error, status = answer.body["error"], answer.status
    kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    details = {"error_code": error["code"], "param": error["param"]}
    stated = {"type": kind, "message": error["message"], "details": details}
    return {"type": "error", "error": stated, "request_id": request_id}


async def respond(error: Exception, scope: Scope, send: Send, *, closes: bool = False) -> None:
    """Answer a request with an error, from outside the handlers; `closes` ends the connection, whose body is unread."""
    answer = logged_error_answer(error, scope)
    headers = answer.headers | ({"connection": "close"} if closes else {})
    await send_answer(answer._replace(headers=headers), scope, send)


class ErrorAnswers:
    """ASGI middleware that answers with the error if the app inside fails before it has begun to answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            call = call_of(scope)
            if call.has_left:
                return
            if call.status is not None or call.is_background:
                raise
            await respond(Draining(), scope, send)  # the server cancels what outlives its drain
        except Exception as error:
            if call_of(scope).status is not None:
                raise  # too late for an answer: the server closes the connection and logs why
            await respond(error, scope, send)
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as panic:
            if call_of(scope).status is not None:
                raise
            fault = RuntimeError("a native library panicked")
            fault.__cause__ = panic
            await respond(fault, scope, send)


def _server_error(error: Exception, request_id: str) -> tuple[int, tuple[str, str, None, str]]:
    if isinstance(error, EngineStopped):
        message = f"The engine has stopped; this instance is being replaced. Request id: {request_id}."
        return error.status, (message, error.type, None, error.code)
    if isinstance(error, NonFiniteLogits | NonFiniteVector):
        return error.status, (f"{error} Request id: {request_id}.", error.type, None, error.code)
    if isinstance(error, EngineError):
        return error.status, (f"The engine failed. Request id: {request_id}.", error.type, None, error.code)
    # Defends against T25.
    return 500, (f"The server had an error. Request id: {request_id}.", "server_error", None, "internal_error")
