"""The `responses=` of a route: its answers, by the names of their models, and the statuses of its errors.

Names and not models, since a start has no time to import them; `document` looks the models up.
Source: https://fastapi.tiangolo.com/advanced/additional-responses/
"""

from typing import Any

SCHEMAS = "#/components/schemas/"
JSON, EVENTS, JSON_LINES = "application/json", "text/event-stream", "application/x-ndjson"

# The errors of a route that names a model, of one that reads a body too, of one that generates, of a store.
MODEL_ERRORS = (404, 503)
BODY_ERRORS = (400, 404, 408, 413, 415, 500, 503, 504)
GENERATION_ERRORS = (*BODY_ERRORS, 429)
STORE_ERRORS = (400, 404, 503)

type Responses = dict[int | str, dict[str, Any]]


def reference(model: str) -> dict[str, str]:
    """Return the reference to a model's schema."""
    return {"$ref": SCHEMAS + model}


def json_content(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a body in JSON."""
    return {JSON: {"schema": schema}}


def answers(model: str, *errors: int, events: str = "", lines: str = "") -> Responses:
    """Return the answers of a route.

    Args:
        model: what it answers with.
        errors: the statuses of its errors.
        events: the model of the events of a stream that a request may ask for.
        lines: the model of the lines of such a stream.
    """
    content = json_content(reference(model))
    for media_type, streamed in ((EVENTS, events), (JSON_LINES, lines)):
        if streamed:
            content[media_type] = {"schema": reference(streamed)}
    return {200: {"content": content}, **statuses(*errors)}


def list_of(model: str, *errors: int) -> Responses:
    """Return the answers of a route that answers with a list of these."""
    return {200: {"content": json_content({"type": "array", "items": reference(model)})}, **statuses(*errors)}


def statuses(*errors: int) -> Responses:
    """Return errors of these statuses, whose model and causes `document` adds."""
    return {status: {} for status in errors}


def in_any_state(model: str) -> Responses:
    """Return the answers of a probe, whose status says whether all is well."""
    return {status: {"content": json_content(reference(model))} for status in (200, 503)}
