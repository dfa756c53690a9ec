"""The `responses=` of a route: the types of its answers, and the statuses of its errors.

A start has no time for schemas: a route states a reference to each type, which `document` follows.
Source: https://fastapi.tiangolo.com/advanced/additional-responses/
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.api.schema.wire import WireObject

SCHEMAS = "#/components/schemas/"
JSON, EVENTS, JSON_LINES = "application/json", "text/event-stream", "application/x-ndjson"

# The errors of a route that names a model, of one that reads a body too, of one that generates, of a store.
MODEL_ERRORS = (404, 503)
BODY_ERRORS = (400, 404, 408, 413, 415, 500, 503, 504)
GENERATION_ERRORS = (*BODY_ERRORS, 429)
STORE_ERRORS = (400, 404, 503)

_referenced: dict[str, type] = {}  # the types by their names

type Responses = dict[int | str, dict[str, Any]]


def reference(kind: type) -> dict[str, str]:
    """Return the reference to a type's schema."""
    _referenced[kind.__name__] = kind
    return {"$ref": SCHEMAS + kind.__name__}


def properties(kind: "type[WireObject]") -> dict[str, dict[str, str]]:
    """Return the references to the schemas of the fields of a type, by their names."""
    path = reference(kind)["$ref"]
    return {name: {"$ref": f"{path}/properties/{name}"} for name in kind.model_fields}


def referenced(document: Any) -> dict[str, type]:
    """Return the types that a document has references to, by their names."""
    if isinstance(document, list):
        return {name: kind for item in document for name, kind in referenced(item).items()}
    if not isinstance(document, dict):
        return {}
    name = str(document.get("$ref", "")).removeprefix(SCHEMAS).partition("/")[0]
    own = {name: _referenced[name]} if name in _referenced else {}
    return own | referenced(list(document.values()))


def json_content(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a body in JSON."""
    return {JSON: {"schema": schema}}


def answers(kind: type, *errors: int, events: type | None = None, lines: type | None = None) -> Responses:
    """Return the answers of a route.

    Args:
        kind: what it answers with.
        errors: the statuses of its errors.
        events: the type of the events of a stream that a request may ask for.
        lines: the type of the lines of such a stream.
    """
    content = json_content(reference(kind))
    for media_type, streamed in ((EVENTS, events), (JSON_LINES, lines)):
        if streamed is not None:
            content[media_type] = {"schema": reference(streamed)}
    return {200: {"content": content}, **statuses(*errors)}


def list_of(kind: type, *errors: int) -> Responses:
    """Return the answers of a route that answers with a list of these."""
    return {200: {"content": json_content({"type": "array", "items": reference(kind)})}, **statuses(*errors)}


def statuses(*errors: int) -> Responses:
    """Return errors of these statuses, whose type and causes `document` adds."""
    return {status: {} for status in errors}


def in_any_state(kind: type) -> Responses:
    """Return the answers of a probe, whose status says whether all is well."""
    return {status: {"content": json_content(reference(kind))} for status in (200, 503)}
