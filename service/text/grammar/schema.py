"""JSON schemas of clients, reduced to what a grammar enforces; anything else is refused by its path.

The result has only keywords that constrain, and its references lead into its own `$defs`, so that a schema means the
same to the grammar library as to a validator of draft 2020-12.
Source: https://json-schema.org/draft/2020-12/json-schema-core
"""

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from service.errors import InvalidParameter
from service.text.grammar import formats, keywords
from service.text.grammar.patterns import rewritten
from service.text.grammar.ranges import unenforced_bounds

MAX_SCHEMA_BYTES = 128 * 1024
MAX_DEPTH = 64
MAX_DEFINITIONS = 256
MAX_PROPERTIES = 2000  # in all
MAX_COUNT = 100_000
MAX_EXACT_INTEGER = 2**53  # the grammar library computes with doubles
MAX_ECHOED_CHARS = 64
# Characters that JSON has as \uXXXX alone, which no grammar here allows.
UNWRITABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")

Schema = dict[str, Any] | bool


def reduced(schema: Any, param: str) -> dict[str, Any]:
    """Return a schema with the same instances that has only what a grammar enforces.

    Args:
        schema: from a request's JSON.
        param: the request's field, with which errors begin the path of what they name.

    Raises:
        InvalidParameter: the schema is malformed, too large, or has a keyword that cannot be enforced.
    """
    if len(json.dumps(schema)) > MAX_SCHEMA_BYTES:
        raise InvalidParameter(f"Invalid '{param}': it is larger than {MAX_SCHEMA_BYTES} bytes.", param=param)
    return _Reader(schema, param).read()


class _Reader:
    """Reads one schema and the definitions that it refers to."""

    def __init__(self, root: Any, param: str) -> None:
        self._root = root
        self._param = param
        self._names: dict[str, str] = {"#": "#"}  # from a reference to the one that replaces it
        self._pending: list[tuple[str, Any, str]] = []  # name, schema, path
        self._num_properties = 0
        self._readers: dict[str, Callable[[Any, str, int], Any]] = {
            **dict.fromkeys(keywords.SUBSCHEMA_KEYWORDS, self._schema),
            **dict.fromkeys(keywords.SUBSCHEMA_LIST_KEYWORDS, self._schemas),
            **dict.fromkeys(keywords.COUNT_KEYWORDS, self._count),
            **dict.fromkeys(keywords.NUMBER_KEYWORDS, self._number),
            "properties": self._properties,
            "patternProperties": self._pattern_properties,
            "$ref": self._reference,
            "const": self._constant,
            "enum": self._enumeration,
            "pattern": self._pattern,
            "required": self._strings,
            "type": self._types,
        }

    def read(self) -> dict[str, Any]:
        schema = self._schema(self._root, self._param, 0)
        if isinstance(schema, bool):
            schema = {"anyOf": [schema]}
        definitions: dict[str, Schema] = {}
        while self._pending:
            name, definition, path = self._pending.pop()
            definitions[name] = self._schema(definition, path, 0)
        return schema | ({"$defs": definitions} if definitions else {})

    def _schema(self, schema: Any, path: str, depth: int) -> Schema:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise _invalid(path, "a schema is an object or a boolean")
        if depth > MAX_DEPTH:
            raise _invalid(path, f"a schema is nested {MAX_DEPTH} levels deep at most")
        kept: dict[str, Any] = {}
        formats_as_patterns: list[Schema] = []
        for keyword, value in schema.items():
            if keyword == "format" and self._format(value, f"{path}.format") in formats.PATTERNS:
                formats_as_patterns = [{"pattern": formats.PATTERNS[value]}]
            elif keyword == "format":
                kept["format"] = value
            elif (read := self._readers.get(keyword)) is not None:
                kept[keyword] = read(value, f"{path}.{keyword}", depth + 1)
            elif not self._constrains_nothing(keyword, value, depth):
                where = f"{path}.{keyword[:MAX_ECHOED_CHARS]}"
                remedy = keywords.REMEDIES.get(keyword, "Leave it out, and check the answer yourself.")
                raise _invalid(where, f"the keyword '{keyword[:MAX_ECHOED_CHARS]}' cannot be enforced. {remedy}")
        self._check_distinct_names(kept, path)
        for bound in unenforced_bounds(kept):
            raise _invalid(
                f"{path}.{bound}", "it cannot be enforced in a range that ends before the next integer. Widen the range"
            )
        return kept | ({"allOf": kept.get("allOf", []) + formats_as_patterns} if formats_as_patterns else {})

    @staticmethod
    def _constrains_nothing(keyword: str, value: Any, depth: int) -> bool:
        if keyword in keywords.NEUTRAL_VALUES:
            return value is keywords.NEUTRAL_VALUES[keyword]
        if keyword == "$id":  # of a part, it changes what references mean
            return depth == 0
        return keyword in keywords.ANNOTATIONS or (keyword.startswith("x-") and keyword != "x-guidance")

    @staticmethod
    def _check_distinct_names(schema: dict[str, Any], path: str) -> None:
        # A mask cannot keep a name from being written twice, and a name that is written twice is one property.
        if schema.get("minProperties", 0) > max(1, len(schema.get("required", ()))):
            raise _invalid(f"{path}.minProperties", "more than 1 cannot be enforced. List names under 'required'")

    def _schemas(self, schemas: Any, path: str, depth: int) -> list[Schema]:
        if not (isinstance(schemas, list) and schemas):
            raise _invalid(path, "it must be a list of schemas")
        return [self._schema(schema, f"{path}[{i}]", depth) for i, schema in enumerate(schemas)]

    def _properties(self, schemas: Any, path: str, depth: int) -> dict[str, Schema]:
        if not isinstance(schemas, dict):
            raise _invalid(path, "it must be an object of schemas")
        for name in schemas:
            _check_writable(name, path)
        self._num_properties += len(schemas)
        if self._num_properties > MAX_PROPERTIES:
            raise _invalid(path, f"a schema has {MAX_PROPERTIES} properties at most")
        return {name: self._schema(s, f"{path}.{name[:MAX_ECHOED_CHARS]}", depth) for name, s in schemas.items()}

    def _pattern_properties(self, schemas: Any, path: str, depth: int) -> dict[str, Schema]:
        return {self._pattern(p, path, depth): s for p, s in self._properties(schemas, path, depth).items()}

    def _count(self, value: Any, path: str, _depth: int) -> int:
        if type(value) is not int or not 0 <= value <= MAX_COUNT:
            raise _invalid(path, f"it must be an integer from 0 to {MAX_COUNT}")
        return value

    def _number(self, value: Any, path: str, _depth: int) -> float:
        if type(value) not in (int, float) or not abs(value) <= MAX_EXACT_INTEGER:
            raise _invalid(path, "it must be a number from -2**53 to 2**53")
        # Validators divide doubles, in which 4.8 is not a multiple of 0.1.
        if path.endswith(".multipleOf") and not (value > 0 and (value * 1024) % 1 == 0):
            raise _invalid(
                path, "it must be a positive integer or binary fraction, such as 0.5; others have no exact multiples"
            )
        return value

    def _constant(self, value: Any, path: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise _invalid(path, f"a value is nested {MAX_DEPTH} levels deep at most")
        if type(value) in (int, float):
            self._number(value, path, depth)
        for text in value if isinstance(value, dict) else (value,):
            _check_writable(text, path)
        for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            self._constant(part, path, depth + 1)
        return value

    def _enumeration(self, values: Any, path: str, depth: int) -> list[Any]:
        if not (isinstance(values, list) and values):
            raise _invalid(path, "it must be a list of values")
        return self._constant(values, path, depth)

    def _strings(self, values: Any, path: str, _depth: int) -> list[str]:
        if not (isinstance(values, list) and all(isinstance(value, str) for value in values)):
            raise _invalid(path, "it must be a list of strings")
        for value in values:
            _check_writable(value, path)
        return list(dict.fromkeys(values))

    def _types(self, value: Any, path: str, _depth: int) -> Any:
        stated = value if isinstance(value, list) else [value]
        if not stated or any(not isinstance(name, str) or name not in keywords.TYPES for name in stated):
            raise _invalid(path, f"a type is one of {', '.join(sorted(keywords.TYPES))}")
        return value

    def _pattern(self, pattern: Any, path: str, _depth: int) -> str:
        if not isinstance(pattern, str):
            raise _invalid(path, "it must be a string")
        try:
            return rewritten(pattern)
        except ValueError as error:
            raise _invalid(path, f"the pattern cannot be enforced: {error}") from None

    @staticmethod
    def _format(name: Any, path: str) -> str:
        if not isinstance(name, str) or name not in formats.FORMATS:
            raise _invalid(path, f"a format is one of {', '.join(sorted(formats.FORMATS))}")
        return name

    def _reference(self, reference: Any, path: str, _depth: int) -> str:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise _invalid(path, "a reference is a JSON pointer into this schema, such as '#/$defs/name'")
        if reference not in self._names:
            if len(self._names) > MAX_DEFINITIONS:
                raise _invalid(path, f"a schema refers to {MAX_DEFINITIONS} definitions at most")
            name = str(len(self._names))
            self._names[reference] = f"#/$defs/{name}"
            self._pending.append((name, self._target(reference, path), f"{self._param}.{_dotted(reference)}"))
        return self._names[reference]

    def _target(self, reference: str, path: str) -> Any:
        """Return the part of the schema that a JSON pointer leads to; RFC 6901."""
        found = self._root
        for step in reference[2:].split("/"):
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isascii() and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, dict) and key in found:
                found = found[key]
            else:
                raise _invalid(path, "the reference leads nowhere")
        return found


def _dotted(reference: str) -> str:
    return reference[2:].replace("/", ".")[:MAX_ECHOED_CHARS]


def _check_writable(value: Any, path: str) -> None:
    if isinstance(value, str) and UNWRITABLE.search(value):
        raise _invalid(path, "a control character other than \\b, \\f, \\n, \\r and \\t cannot be written")


def _invalid(path: str, problem: str) -> InvalidParameter:
    return InvalidParameter(f"Invalid '{path}': {problem.rstrip('.')}.", param=path)
