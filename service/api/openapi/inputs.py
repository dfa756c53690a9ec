"""The inputs of an operation besides its path: a query, a JSON body, or a form with a file."""

from typing import Any

from service.api.openapi.operations import Operation
from service.api.openapi.schemas import reference

FILE = {"type": "string", "format": "binary", "description": "The file, with a name."}


def query_parameters(operation: Operation) -> list[dict[str, Any]]:
    """Return the parameters of the query."""
    if operation.query is None:
        return []
    properties = operation.query.model_json_schema()["properties"]
    return [{"name": name, "in": "query", **_parameter(schema)} for name, schema in properties.items()]


def body_content(operation: Operation) -> dict[str, Any] | None:
    """Return the body by its media type; None if there is none."""
    if operation.form is not None:
        schema = reference(operation.form)["$ref"]
        names = operation.form.model_fields
        required = ["file", *(name for name, field in names.items() if field.is_required())]
        # The form's own schema forbids other fields, so the file is not added to it.
        properties = {"file": FILE} | {name: {"$ref": f"{schema}/properties/{name}"} for name in names}
        form = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        encoding = {"expires_after": {"style": "deepObject", "explode": True}}
        return {"multipart/form-data": {"schema": form, "encoding": encoding}}
    if operation.bodies:
        return {"application/json": {"schema": {"anyOf": [reference(body) for body in operation.bodies]}}}
    if operation.body is not None:
        return {"application/json": {"schema": reference(operation.body)}}
    return None


def _parameter(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a field's description and schema; a URL cannot write null."""
    [written, *_] = [kind for kind in schema.pop("anyOf", [{}]) if kind != {"type": "null"}]
    return {"description": schema.pop("description"), "schema": written | _without_title(schema)}


def _without_title(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "title"}
