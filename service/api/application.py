"""Puts the routes and the layers around them together; knows no engine and no start, only their Protocols."""

from collections.abc import Sequence

from fastapi import FastAPI

from service.api import chat, completions, health, model_list
from service.api.dependencies import ApiContext, Readiness
from service.api.http import errors as failures
from service.api.http.access_log import AccessLog
from service.api.http.auth import KeyCheck
from service.api.http.body import BodyLimit
from service.observability.metrics import Metrics


def create_api(
    readiness: Readiness,
    metrics: Metrics,
    *,
    api_keys: Sequence[str] = (),
    request_timeout_s: float = 300.0,
    default_max_tokens: int | None = None,
    default_temperature: float | None = None,
    max_body_bytes: int = 4 * 1024 * 1024,
    body_timeout_s: float = 30.0,
    project_id: str | None = None,
) -> FastAPI:
    """Return the ASGI app that answers from the first moment on; before the model is there, with 503.

    Args:
        readiness: how far the start is, and the model once it is there.
        metrics: where answers are counted; also what /metrics shows.
        api_keys: any of these opens all routes; none: no key is asked for.
        request_timeout_s: for one request in all, waiting included.
        default_max_tokens: when a request does not say; None for OpenAI's own defaults.
        default_temperature: when a request does not say; None for the checkpoint's.
        max_body_bytes: a larger body is refused unread.
        body_timeout_s: within which a body must have come.
        project_id: the Google Cloud project, which makes a trace id a link in Cloud Logging.
    """
    # No pages of documentation: they would describe the service to strangers and fetch scripts from elsewhere.
    app = FastAPI(title="Levserve", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.context = ApiContext(
        readiness=readiness,
        metrics=metrics,
        request_timeout_s=request_timeout_s,
        default_max_tokens=default_max_tokens,
        default_temperature=default_temperature,
    )
    for module in (chat, completions, model_list, health):
        app.include_router(module.router)
    failures.install(app)
    # The last one added is the outermost.
    app.add_middleware(BodyLimit, max_bytes=max_body_bytes, timeout_s=body_timeout_s)
    app.add_middleware(KeyCheck, keys=api_keys)
    app.add_middleware(AccessLog, metrics=metrics, project_id=project_id)
    return app
