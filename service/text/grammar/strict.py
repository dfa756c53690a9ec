"""OpenAI's rules of strict schemas, under which a model can leave nothing out and add nothing.

Source: https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
"""

from typing import Any

from service.errors import InvalidParameter
from service.text.grammar import keywords


def check_strict(schema: Any, param: str) -> None:
    """Check a schema that a request marks `strict`.

    Raises:
        InvalidParameter: its root is not an object, or an object in it has optional or additional properties.
    """
    if not isinstance(schema, dict) or schema.get("type") != "object" or "anyOf" in schema:
        raise InvalidParameter(f"Invalid '{param}': the root of a strict schema has 'type': 'object'.", param=param)
    _check_part(schema, param)


def _check_part(schema: Any, path: str) -> None:
    if isinstance(schema, list):  # a tuple of earlier drafts
        for i, part in enumerate(schema):
            _check_part(part, f"{path}[{i}]")
    if not isinstance(schema, dict):
        return
    if schema.get("type") == "object" or "properties" in schema:
        _check_object(schema, path)
    for keyword, value in schema.items():
        where = f"{path}.{keyword}"
        if keyword in keywords.SUBSCHEMA_KEYWORDS | keywords.SUBSCHEMA_LIST_KEYWORDS | {"additionalItems"}:
            _check_part(value, where)
        elif keyword in {"$defs", "definitions", "properties"} and isinstance(value, dict):
            for name, part in value.items():
                _check_part(part, f"{where}.{name}")


def _check_object(schema: dict[str, Any], path: str) -> None:
    if schema.get("additionalProperties") is not False:
        param = f"{path}.additionalProperties"
        raise InvalidParameter(f"Invalid '{param}': it must be false in a strict schema.", param=param)
    missing = set(schema.get("properties", ())) - set(schema.get("required", ()))
    if missing:
        param = f"{path}.required"
        raise InvalidParameter(
            f"Invalid '{param}': in a strict schema it has every property; '{min(missing)}' is missing. "
            "For an optional one, allow the type 'null'.",
            param=param,
        )
