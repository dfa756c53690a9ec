"""The JSON Schemas of bodies and answers."""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service.api.openapi.operations import Operation
from service.api.openapi.other_answers import Error

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
    return _without_titles(generated["$defs"])


def _without_titles(schema: Any) -> Any:
    """Return a schema without the titles that Pydantic makes of names."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_titles(value) for name, value in schema.items() if name != "title" or not isinstance(value, str)
    }
