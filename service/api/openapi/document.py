"""The OpenAPI document: FastAPI's, completed by what its generator does not see.

These are the bodies and queries, which dependencies read from the raw request, and the operator's routes, which the
server answers without FastAPI.
Source: https://spec.openapis.org/oas/v3.1.1.html, https://fastapi.tiangolo.com/how-to/extending-openapi/
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any, TypeAliasType, get_args, get_type_hints, is_typeddict

from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from service.api.answers.messages import MessageError
from service.api.answers.ollama import OllamaError
from service.api.answers.service import Error
from service.api.http.errors import OLLAMA_PATHS, is_anthropic
from service.api.http.probes import PROBE_PATHS
from service.api.openapi.admin import SCHEME, SECURITY, admin_paths
from service.api.openapi.errors import causes
from service.api.openapi.responses import EVENTS, JSON, JSON_LINES, SCHEMAS, json_content, reference, referenced
from service.api.schema.docstrings import field_docstrings
from service.api.schema.wire import WireObject

KEY = "key"  # the name of the security scheme
INTRODUCTION = (
    "An OpenAI-compatible inference service. A field that promises something is enforced, or refused with a 400 that "
    "names it in `param`. Any other field is accepted, and the header `x-levserve-ignored` names those without effect; "
    "with STRICT_FIELDS they are refused."
)
STREAMS = {
    EVENTS: " With `stream: true` server-sent events, each `data: ` and a chunk; `data: [DONE]` is the last.",
    JSON_LINES: " Without `stream: false` a stream of such objects, one a line.",
}
RETRY_AFTER = {"description": "Seconds to wait before the next try.", "schema": {"type": "string"}}


def document(routers: Sequence[APIRouter], version: str, *, needs_key: bool) -> dict[str, Any]:
    """Return the document.

    Args:
        routers: all routers of the API.
        version: Levserve's version.
        needs_key: whether operations other than health checks ask for a key.
    """
    routes = [
        _without_head(route)
        for router in routers
        for route in router.routes
        if isinstance(route, APIRoute) and route.include_in_schema
    ]
    found = get_openapi(
        title="Levserve", version=version, description=INTRODUCTION, servers=[{"url": "/"}], routes=routes
    )
    for route in routes:
        for method in route.methods or ():
            asks_for_key = needs_key and route.path not in PROBE_PATHS
            _complete(found["paths"][route.path_format][method.lower()], route, asks_for_key=asks_for_key)
    found["paths"] |= admin_paths()
    schemas = _schemas(found["paths"])
    for operations in found["paths"].values():
        for operation in operations.values():
            _describe(operation["responses"], schemas)
    schemes = {SCHEME: SECURITY, **({KEY: {"type": "http", "scheme": "bearer"}} if needs_key else {})}
    return {**found, "components": {"schemas": schemas, "securitySchemes": schemes}}


def _without_head(route: APIRoute) -> APIRoute:
    """Return a route without HEAD, which is everywhere where GET is."""
    described = copy.copy(route)
    described.methods = (route.methods or set()) - {"HEAD"}
    return described


def _complete(operation: dict[str, Any], route: APIRoute, *, asks_for_key: bool) -> None:
    text = route.description.partition("\n\nSource:")[0]
    operation |= {"operationId": route.name, "summary": text.partition("\n")[0].rstrip("."), "description": text}
    responses = operation["responses"]
    responses.pop("422", None)  # FastAPI's own answer to a parameter at fault
    parameters = get_type_hints(route.endpoint)
    if "body" in parameters:
        body = json_content(reference(parameters["body"]))
        operation["requestBody"] = {"required": True, "content": body}
    if "query" in parameters:
        operation["parameters"] = [*operation.get("parameters", ()), *_query(parameters["query"])]
    if asks_for_key:
        operation["security"] = [{KEY: []}]
        responses["401"] = {}
    for status, response in responses.items():
        if status >= "400" and "content" not in response:
            response["content"] = json_content(reference(_error(route.path)))


def _query(kind: type[WireObject]) -> Iterator[dict[str, Any]]:
    for name, schema in kind.model_json_schema()["properties"].items():
        # A URL cannot write null.
        [written, *_] = [option for option in schema.pop("anyOf", [{}]) if option != {"type": "null"}]
        yield {"name": name, "in": "query", "description": schema.pop("description"), "schema": written | schema}


def _error(path: str) -> type:
    if is_anthropic(path):
        return MessageError
    return OllamaError if path.startswith(OLLAMA_PATHS) else Error


def _schemas(paths: dict[str, Any]) -> dict[str, Any]:
    """Return the schemas of the types that operations name, and of those within them, by name."""
    kinds = sorted(referenced(paths).items())
    adapters: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = [
        (name, "validation", TypeAdapter(kind)) for name, kind in kinds
    ]
    schemas = TypeAdapter.json_schemas(adapters, ref_template=SCHEMAS + "{model}")[1]["$defs"]
    for described in {inner for _, kind in kinds for inner in _typed_dicts(kind)}:
        for name, text in field_docstrings(described).items():
            schemas[described.__name__]["properties"][name]["description"] = text
    return schemas


def _typed_dicts(kind: Any) -> Iterator[type]:
    """Yield the typed dicts among a type, its arguments and its fields."""
    if is_typeddict(kind):
        yield kind
        for hint in get_type_hints(kind).values():
            yield from _typed_dicts(hint)
    elif isinstance(kind, TypeAliasType):
        yield from _typed_dicts(kind.__value__)
    else:
        for argument in get_args(kind):
            yield from _typed_dicts(argument)


def _describe(responses: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Describe an answer by its model, and an error by its causes."""
    for status, response in responses.items():
        content = response.get("content", {})
        model = content.get(JSON, {}).get("schema", {}).get("$ref", "").removeprefix(SCHEMAS)
        if model.endswith("Error"):
            response["description"] = causes(int(status))
            if status in ("429", "503"):
                response["headers"] = {"Retry-After": RETRY_AFTER}
        elif model:
            streams = [text for media_type, text in STREAMS.items() if media_type in content]
            response["description"] = schemas[model]["description"].partition("\n")[0] + "".join(streams)
