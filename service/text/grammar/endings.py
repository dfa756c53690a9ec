"""Recursive schemas without an end: those that only an infinite value satisfies."""

from collections.abc import Set
from typing import Any

from service.text.grammar.keywords import TYPES
from service.text.grammar.schema import Schema

_SCALAR_TYPES = TYPES - {"array", "object"}


def has_end(schema: dict[str, Any]) -> bool:
    """Return whether a reduced schema has no reference that leads back to itself in every value.

    References are counted as finite once the schema that they lead to is found to be: the least fixed point.
    """
    parts = {"#": schema} | {f"#/$defs/{name}": part for name, part in schema.get("$defs", {}).items()}
    finite: set[str] = set()
    while True:
        found = {name for name, part in parts.items() if name not in finite and _is_finite(part, finite)}
        if not found:
            return "#" in finite
        finite |= found


def _is_finite(schema: Schema, finite: Set[str]) -> bool:
    if isinstance(schema, bool) or "const" in schema or "enum" in schema:
        return True
    if "$ref" in schema and schema["$ref"] not in finite:
        return False
    if not all(_is_finite(part, finite) for part in schema.get("allOf", ())):
        return False
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema and not any(_is_finite(part, finite) for part in schema[keyword]):
            return False
    return _has_finite_type(schema, finite)


def _has_finite_type(schema: dict[str, Any], finite: Set[str]) -> bool:
    stated = schema.get("type", list(TYPES))
    types = {stated} if isinstance(stated, str) else set(stated)
    if types & _SCALAR_TYPES:
        return True
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    if "object" in types and all(
        _is_finite(properties.get(name, others), finite) for name in schema.get("required", ())
    ):
        return True
    first, rest = schema.get("prefixItems", []), schema.get("items", True)
    num_items = schema.get("minItems", 0)
    return "array" in types and all(
        _is_finite(item, finite) for item in [*first[:num_items], *([rest] if num_items > len(first) else [])]
    )
