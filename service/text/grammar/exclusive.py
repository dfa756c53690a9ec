"""Alternatives of a schema of which no value satisfies two, as far as that is plain to see.

Of such alternatives `oneOf` means what `anyOf` means.
"""

import contextlib
from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from service.text.grammar.pointer import target

# More are not looked at.
MAX_ALTERNATIVES = 64
MAX_TAGS = 32
MAX_VALUES = 256

_Values = Set[Hashable] | None  # None for any


@dataclass(frozen=True, slots=True)
class _Facts:
    """What every instance of a schema is."""

    types: _Values  # with integers as numbers
    values: _Values
    tags: dict[str, Set[Hashable]]  # of an object: the values of a property that it must have


def are_exclusive(alternatives: Sequence[Any], root: Any) -> bool:
    """Return whether each value satisfies at most one schema, by their types, constants or discriminators.

    Args:
        alternatives: schemas as a request states them.
        root: the whole schema, into which references lead.
    """
    if len(alternatives) > MAX_ALTERNATIVES:
        return len(alternatives) < 2
    found = [_facts(schema, root) for schema in alternatives]
    return all(_exclude(one, other) for one, other in combinations(found, 2))


def _exclude(one: _Facts, other: _Facts) -> bool:
    if one.types is not None and other.types is not None and one.types.isdisjoint(other.types):
        return True
    if one.values is not None and other.values is not None and one.values.isdisjoint(other.values):
        return True
    # A discriminator says nothing of what is no object.
    if {"object"} not in (one.types, other.types):
        return False
    return any(one.tags[name].isdisjoint(other.tags[name]) for name in one.tags.keys() & other.tags.keys())


def _facts(schema: Any, root: Any) -> _Facts:
    if isinstance(schema, dict) and schema.keys() == {"$ref"}:
        with contextlib.suppress(LookupError):
            schema = target(str(schema["$ref"]), root)
    if not isinstance(schema, dict):
        return _Facts(None, None, {})
    properties, required = schema.get("properties"), schema.get("required")
    tags: dict[str, Set[Hashable]] = {}
    if isinstance(properties, dict) and isinstance(required, list):
        for name in required[:MAX_TAGS]:
            if isinstance(name, str) and (values := _values(properties.get(name))) is not None:
                tags[name] = values
    if schema.get("nullable") is True:
        return _Facts(None, None, {})
    return _Facts(_types(schema.get("type")), _values(schema), tags)


def _types(stated: Any) -> _Values:
    names = stated if isinstance(stated, list) else [stated]
    if not all(isinstance(name, str) for name in names):
        return None
    return {"number" if name == "integer" else name for name in names}


def _values(schema: Any) -> _Values:
    """Return the values of a constant or an enumeration, each with its type: 1 equals 1.0, and true is no number."""
    if not isinstance(schema, dict):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or len(values) > MAX_VALUES:
        return None
    if any(isinstance(value, list | dict) for value in values):
        return None
    return {("number" if type(value) in (int, float) else type(value), value) for value in values}
