"""The JSON Schemas of bodies and answers, made by Pydantic and completed for what its validators do beyond it."""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service.api.openapi.fields import FIELDS
from service.api.openapi.operations import Operation
from service.api.openapi.other_answers import Error
from service.api.schema.wire import WireObject

PREFIX = "#/components/schemas/"


def reference(kind: type[BaseModel]) -> dict[str, str]:
    """Return the reference to a model's schema."""
    return {"$ref": PREFIX + kind.__name__}


def schemas(operations: Iterable[Operation], answers: Iterable[type[BaseModel]]) -> dict[str, Any]:
    """Return the schemas of all bodies and answers, and of what they hold, by name.

    Args:
        operations: of the API.
        answers: of other routes.
    """
    kinds: list[type[BaseModel]] = [Error, *answers]
    for operation in operations:
        kinds += [
            kind
            for kind in (operation.body, operation.form, operation.answer, operation.event, operation.error)
            if kind is not None
        ]
    unique = list(dict.fromkeys(kinds))
    _, generated = models_json_schema([(kind, "validation") for kind in unique], ref_template=PREFIX + "{model}")
    found = generated["$defs"]
    bodies = {kind.__name__ for kind in _below(WireObject)}
    for name, schema in found.items():
        if name in bodies:
            _complete(name, schema)
    return _without_titles(found)


def _complete(kind: str, schema: dict[str, Any]) -> None:
    """Describe the fields of a request, and allow null where a field can be left out, since both mean the same."""
    schema.pop("additionalProperties", None)  # unknown fields are accepted, and named in the answer
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        if name not in required and {"type": "null"} not in field.get("anyOf", ()):
            default = {"default": field.pop("default")} if "default" in field else {}
            kept = dict(field)
            field.clear()
            field.update(anyOf=[kept, {"type": "null"}], **default)
        if description := FIELDS.get(f"{kind}.{name}") or FIELDS.get(name):
            field["description"] = description


def _without_titles(schema: Any) -> Any:
    """Return a schema without the titles that Pydantic makes of names."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_titles(value) for name, value in schema.items() if name != "title" or not isinstance(value, str)
    }


def _below(kind: type[WireObject]) -> set[type[WireObject]]:
    return {found for child in kind.__subclasses__() for found in {child, *_below(child)}}
