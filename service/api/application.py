"""The ASGI application: routes, error handlers and middleware; the engine and the start are known by Protocols only."""

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from service.api.backend import Backend, may_see
from service.api.description import Documents
from service.api.http.admission import AdmissionPlaces
from service.api.http.auth import KeyCheck
from service.api.http.call import ApiContext
from service.api.http.errors import ErrorAnswers, logged_error_answer
from service.api.http.form import FORM_BYTES, RECORDING_FORM_BYTES
from service.api.http.keys import ApiKeys
from service.api.http.receive import Accepted, AcceptedBodies, BodyLimit
from service.api.http.request_queue import Caps, RequestQueue
from service.api.routes import Routes
from service.api.work.long_body import LongBodies
from service.api.work.media import MAX_PDF_BYTES, MediaProcesses
from service.api.work.text_threads import TextThreads
from service.errors import EngineError, MethodNotAllowed, RequestError, UnknownRoute
from service.observability.metrics import Metrics

if TYPE_CHECKING:
    from service.api.batch.batches import Batches
    from service.api.memory.store import ResponseStore
    from service.api.work.remote_images import RemoteImages

FILES = "/v1/files"
AUDIO = ("/v1/audio/transcriptions", "/v1/audio/translations")
EXTRACT_TEXT = "/extract_text"
FORM = "multipart/form-data"
# Where a body may have images.
CHATS = (
    *("/v1/chat/completions", "/v1/responses", "/v1/messages", "/invocations", "/api/chat", "/api/generate"),
    *("/tokenize", "/v1/messages/count_tokens", "/v1/chat/completions/render", "/v1/responses/render"),
    "/v1/messages/render",
)
CANCELS = re.compile(r"/v1/(?:responses|batches)/[^/]+/cancel")
NO_CAPS, NO_KEYS = Caps(), ApiKeys()


def create_api(
    backend: Backend,
    metrics: Metrics,
    *,
    keys: ApiKeys = NO_KEYS,
    caps: Caps = NO_CAPS,
    request_timeout_s: float = 300.0,
    default_max_tokens: int | None = None,
    default_temperature: float | None = None,
    max_body_bytes: int = 4 * 1024 * 1024,
    body_timeout_s: float = 30.0,
    batches: "Batches | None" = None,
    responses: "ResponseStore | None" = None,
    max_file_bytes: int = 0,
    max_audio_bytes: int = 25 * 1024 * 1024,
    max_image_body_bytes: int = 32 * 1024 * 1024,
    remote_images: "RemoteImages | None" = None,
    yield_to_steps: Callable[[], None] = lambda: None,
) -> FastAPI:
    """Return the ASGI app; it can answer, with 503, before the model is loaded.

    Args:
        backend: the state of the service, and its models.
        metrics: the series that answers are counted in and that /metrics shows.
        keys: each of these opens every route; if empty, no key is needed.
        caps: the most that the requests of clients may take together.
        request_timeout_s: for one request in all, waiting included.
        default_max_tokens: for requests without a limit; None for OpenAI's own defaults.
        default_temperature: for requests without one; None for the checkpoint's.
        max_body_bytes: a larger body is refused unread.
        body_timeout_s: for a whole body to arrive.
        batches: the uploaded files and batches; None for no such routes.
        responses: those that are kept; None to keep none.
        max_file_bytes: a larger file is refused.
        max_audio_bytes: a larger recording is refused.
        max_image_body_bytes: a larger body is refused if a model takes images; `max_body_bytes` is the rest's bound.
        remote_images: fetches images by their addresses; None to refuse them.
        yield_to_steps: lowers the priority of a thread that works on a long text.
    """
    # FastAPI's own pages fetch scripts from elsewhere, and its document would lack the bodies.
    app = FastAPI(title="Levserve", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    queue, text_threads = RequestQueue(caps), TextThreads(yield_to_steps)
    app.state.context = ApiContext(
        queue=queue,
        backend=backend,
        metrics=metrics,
        request_timeout_s=request_timeout_s,
        default_max_tokens=default_max_tokens,
        default_temperature=default_temperature,
        text_threads=text_threads,
        long_bodies=LongBodies(
            queue.long_work,
            text_threads,
            max_body_bytes=max_body_bytes,
            max_image_body_bytes=max_image_body_bytes,
        ),
        media=MediaProcesses(text_threads, max_file_bytes=max_audio_bytes),
        max_body_bytes=max_body_bytes,
        remote_images=remote_images,
    )
    app.state.batches = batches
    app.state.responses = responses
    app.state.routes = Routes(app, has_batches=batches is not None)
    app.state.documents = Documents()
    _handle_errors(app)
    # The last one added is the outermost.
    accepted = AcceptedBodies(
        Accepted(max_body_bytes, body_timeout_s, setting="MAX_BODY_BYTES"),
        uploads=_uploads(max_audio_bytes, None if batches is None else max_file_bytes, request_timeout_s),
        with_images=Accepted(max_image_body_bytes, request_timeout_s, setting="MAX_IMAGE_BODY_BYTES"),
        image_paths=CHATS,
        may_see=partial(may_see, backend),
        cancels=CANCELS,
    )
    app.add_middleware(BodyLimit, accepted=accepted)
    app.add_middleware(AdmissionPlaces, queue=queue, accepted=accepted)
    app.add_middleware(KeyCheck, keys=keys)
    app.add_middleware(ErrorAnswers)
    return app


def _uploads(max_audio_bytes: int, max_file_bytes: int | None, timeout_s: float) -> dict[str, Accepted]:
    """Return the forms that paths take; None for no files."""
    audio = Accepted(max_audio_bytes + RECORDING_FORM_BYTES, timeout_s, FORM, "MAX_AUDIO_BYTES")
    uploads: dict[str, Accepted] = dict.fromkeys(AUDIO, audio)
    uploads[EXTRACT_TEXT] = Accepted(MAX_PDF_BYTES + FORM_BYTES, timeout_s, FORM)
    if max_file_bytes is not None:
        most = max_file_bytes + FORM_BYTES
        uploads[FILES] = Accepted(most, timeout_s, FORM, "BATCH_FILE_BYTES", is_held=False)
    return uploads


def _handle_errors(app: FastAPI) -> None:
    app.add_exception_handler(RequestError, _answer_error)
    app.add_exception_handler(EngineError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_routing_error)


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    answer = logged_error_answer(error, request.scope)
    return JSONResponse(answer.body, answer.status, answer.headers)


async def _answer_routing_error(request: Request, error: Any) -> JSONResponse:
    response = await _answer_error(request, _routing_error(error))
    response.headers.update(error.headers or {})  # Allow
    return response


def _routing_error(error: HTTPException) -> Exception:
    match error.status_code:
        case 404:
            return UnknownRoute("There is no such route. GET /openapi.json lists the routes.")
        case 405:
            return MethodNotAllowed()
        case _:
            return error
