"""The OpenAPI document: every route with the schemas of its body, answers and errors.

FastAPI cannot make it: bodies are parsed by `json_body`, handlers write plain JSON, and a start leaves FastAPI's models
of documents out.
Source: https://spec.openapis.org/oas/v3.1.1.html
"""

import inspect
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute

from service.api.http.probes import READY_PATHS
from service.api.openapi.admin import ADMIN_ANSWERS, SCHEME, SECURITY, admin_paths
from service.api.openapi.errors import error_responses
from service.api.openapi.inputs import body_content, query_parameters
from service.api.openapi.operations import OPERATIONS, Operation
from service.api.openapi.schemas import reference, schemas

ALIASES = frozenset(
    {
        *READY_PATHS[1:],
        "/embeddings",
        "/rerank",
        "/reranking",
        "/v1/reranking",
        "/score",
        "/loads",
        "/get_model_info",
        "/get_server_info",
    }
)
KEY = "key"  # the name of the security scheme
INTRODUCTION = (
    "An OpenAI-compatible inference service. Every field of a request is enforced, or refused with a 400 that names it "
    "in `param`: a field that a request's schema lacks is refused."
)


def document(routers: Sequence[APIRouter], version: str, *, needs_key: bool) -> dict[str, Any]:
    """Return the document.

    Args:
        routers: of the API.
        version: of Levserve.
        needs_key: whether operations other than health checks ask for a key.
    """
    paths: dict[str, dict[str, Any]] = {}
    for router in routers:
        for found in router.routes:
            assert isinstance(found, APIRoute)
            if found.include_in_schema and found.path not in ALIASES:
                operation = _operation(found, OPERATIONS[found.endpoint.__name__], needs_key=needs_key)
                path = paths.setdefault(found.path.replace(":path}", "}"), {})
                # HEAD is everywhere where GET is.
                path.update({method.lower(): operation for method in (found.methods or set[str]()) - {"HEAD"}})
    components: dict[str, Any] = {
        "schemas": schemas(OPERATIONS.values(), ADMIN_ANSWERS),
        "securitySchemes": {SCHEME: SECURITY},
    }
    if needs_key:
        components["securitySchemes"][KEY] = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Levserve", "version": version, "description": INTRODUCTION},
        "servers": [{"url": "/"}],
        "paths": paths | admin_paths(),
        "components": components,
    }


def _operation(found: APIRoute, operation: Operation, *, needs_key: bool) -> dict[str, Any]:
    text = (inspect.getdoc(found.endpoint) or "").partition("\n\nSource:")[0]
    asks_for_key = needs_key and operation.needs_key
    described: dict[str, Any] = {
        "operationId": found.endpoint.__name__,
        "summary": text.partition("\n")[0].rstrip("."),
        "description": text,
        "tags": [operation.tag],
        "responses": _answers(operation)
        | error_responses((*operation.errors, *((401,) if asks_for_key else ())), operation.error),
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in found.param_convertors
    ]
    if parameters := [*parameters, *query_parameters(operation)]:
        described["parameters"] = parameters
    if (content := body_content(operation)) is not None:
        described["requestBody"] = {"required": True, "content": content}
    if asks_for_key:
        described["security"] = [{KEY: []}]
    return described


def _answers(operation: Operation) -> dict[str, Any]:
    if operation.answer is None:
        return {
            "200": {"description": "The answer.", "content": {operation.media_type: {"schema": {"type": "string"}}}}
        }
    schema: dict[str, Any] = reference(operation.answer)
    content = {"application/json": {"schema": {"type": "array", "items": schema} if operation.is_list else schema}}
    description = (inspect.getdoc(operation.answer) or "").partition("\n")[0]
    if operation.event is None:
        return {
            status: {"description": description, "content": content}
            for status in (("200", "503") if operation.answers_503 else ("200",))
        }
    content[operation.stream_media_type] = {"schema": reference(operation.event)}
    if operation.stream_media_type == "text/event-stream":
        description += " With `stream: true` server-sent events, each `data: ` and a chunk; `data: [DONE]` is the last."
    else:
        description += " Without `stream: false` a stream of such objects, one a line."
    return {"200": {"description": description, "content": content}}
