"""The parameters of a function, for formats that write each argument as an element of its own."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.errors import InvalidParameter
from service.text.grammar.definition import ANY_JSON

# Of the schema of all arguments; `additionalProperties` is met by writing none.
_KNOWN_KEYWORDS = {"type", "properties", "required", "additionalProperties", "$defs", "x-guidance"}
# Keywords that may name further arguments.
_NAMING_KEYWORDS = {"$ref", "allOf", "anyOf", "oneOf", "const", "enum", "patternProperties"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function."""

    name: str
    schema: Mapping[str, Any]  # as `definition.json_part` returns it
    is_required: bool
    texts: tuple[str, ...] | None = None  # the values, if they are a few texts
    max_chars: int | None = None  # of a value that is any text
    is_text: bool = False  # whether the value is written as it is; otherwise as JSON, which can hold to any keyword


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a function."""

    stated: tuple[Parameter, ...]
    others: Mapping[str, Any] | None  # the schema of any further argument; None if there is none

    def unheld(self) -> "Parameters":
        """Return parameters of the same names whose values are held to no more than to be texts, or JSON."""
        stated = tuple(
            Parameter(parameter.name, ANY_JSON, parameter.is_required, is_text=parameter.is_text)
            for parameter in self.stated
        )
        return Parameters(stated, None if self.others is None else ANY_JSON)


def parameters_of(schema: Mapping[str, Any], param: str, relaxed: list[str] | None = None) -> Parameters:
    """Return the parameters that the schema of a function's arguments states.

    Further arguments are written where the schema states none, or more than separate elements can hold to.

    Args:
        schema: as `definition.json_part` returns it.
        param: the request's field, which errors name.
        relaxed: where the paths are added of what separate elements cannot hold to; None if it is refused.

    Raises:
        InvalidParameter: the schema has a keyword, or a name, that separate elements cannot hold to.
    """

    def relax(path: str, what: str) -> None:
        if relaxed is None:
            raise _unwritable(path, what)
        relaxed.append(path)

    properties, required = dict(schema.get("properties", {})), schema.get("required", [])
    others = schema.get("additionalProperties", True)
    has_others = not properties and "maxProperties" not in schema
    is_met = {  # whatever elements are written
        "minProperties": schema.get("minProperties", 0) <= len(required),
        "maxProperties": schema.get("maxProperties", len(properties)) >= len(properties),
    }
    for keyword in schema:
        if keyword not in _KNOWN_KEYWORDS and not is_met.get(keyword, False):
            relax(f"{param}.{keyword}", "a keyword that concerns several arguments")
            has_others = has_others or keyword in _NAMING_KEYWORDS
    if '"$ref": "#"' in json.dumps(schema):
        relax(param, "a reference to all of them")
        properties, others = dict.fromkeys(properties, True), others is not False
        schema = {"x-guidance": schema["x-guidance"]}
    for name in required:
        if name not in properties:
            relax(f"{param}.required", "a required argument that 'properties' lacks")
            properties[name] = others
    for name in list(properties):
        if not name or ">" in name or "\n" in name:
            relax(f"{param}.properties", "a name that is empty or has '>' or a line break")
            del properties[name]
    shared = {name: schema[name] for name in ("$defs", "x-guidance") if name in schema}
    stated = tuple(
        _parameter(name, {"allOf": [part]} if isinstance(part, bool) else part, name in required, shared)
        for name, part in properties.items()
    )
    if not has_others or others is False:
        return Parameters(stated, None)
    return Parameters(stated, {**({} if others is True else others), **shared})


def _parameter(name: str, part: Mapping[str, Any], is_required: bool, shared: Mapping[str, Any]) -> Parameter:
    resolved = part
    for _ in shared.get("$defs", ()):  # a reference may lead to another
        if resolved.keys() == {"$ref"}:
            resolved = shared["$defs"][resolved["$ref"].rpartition("/")[2]]
    texts = _texts(resolved)
    is_any_text = resolved.get("type") == "string" and resolved.keys() <= {"type", "maxLength"}
    if texts is None and not is_any_text:
        return Parameter(name, {**part, **shared}, is_required)
    return Parameter(name, {**part, **shared}, is_required, texts, resolved.get("maxLength"), is_text=True)


def _texts(schema: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the values, if they are a few texts and nothing else holds for them."""
    if not (schema.keys() <= {"type", "enum"} or schema.keys() <= {"type", "const"}):
        return None
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    # Of elements' marks, none may be in a value.
    is_writable = all(isinstance(value, str) and "</" not in value for value in values)
    return tuple(values) if values and is_writable and schema.get("type", "string") == "string" else None


def _unwritable(param: str, what: str) -> InvalidParameter:
    message = f"Invalid '{param}': this model writes each argument by itself, so {what} cannot be enforced."
    return InvalidParameter(message, param=param)
