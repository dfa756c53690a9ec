"""JSON schemas of clients, reduced to what a grammar enforces; anything else is refused, or left out, by its path.

The result has only keywords that constrain, and its references lead into its own `$defs`, so that a schema means the
same to the grammar library as to a validator of draft 2020-12. What is left out only ever widens a schema: every
keyword that is kept holds more values where a schema inside it does. `not`, `if` and `oneOf` do not, so the first two
are left out whole, and the last becomes `anyOf`.
Source: https://json-schema.org/draft/2020-12/json-schema-core
"""

import json
import re
from collections.abc import Callable
from typing import Any

from service.errors import InvalidParameter
from service.text.grammar import formats, keywords
from service.text.grammar.exclusive import are_exclusive
from service.text.grammar.patterns import rewritten
from service.text.grammar.pointer import target
from service.text.grammar.ranges import unenforced_bounds

MAX_SCHEMA_BYTES = 128 * 1024
MAX_DEPTH = 64
MAX_DEFINITIONS = 256
MAX_PROPERTIES = 2000  # in all
MAX_COUNT = 100_000
MAX_EXACT_INTEGER = 2**53  # the grammar library computes with doubles
MAX_ECHOED_CHARS = 64
MAX_RELAXED = 1000  # paths of a list
# Characters that JSON has only as \uXXXX, which no grammar here allows.
UNWRITABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")

Schema = dict[str, Any] | bool


def reduced(schema: Any, param: str, relaxed: list[str] | None = None) -> dict[str, Any]:
    """Return a schema with the same instances that has only what a grammar enforces.

    Args:
        schema: from a request's JSON.
        param: the request's field, with which errors begin the path of what they name.
        relaxed: where the paths of keywords are added that are left out because they cannot be enforced: the result
            then has more instances. None if they are refused.

    Raises:
        InvalidParameter: the schema is too large; or, unless it is relaxed, it is malformed or has a keyword that
            cannot be enforced.
    """
    # Defends against T9.
    if len(json.dumps(schema)) > MAX_SCHEMA_BYTES:
        raise InvalidParameter(f"Invalid '{param}': it is larger than {MAX_SCHEMA_BYTES} bytes.", param=param)
    return _SchemaReader(schema, param, relaxed).read()


class _SchemaReader:
    """Reads one schema and the definitions that it refers to."""

    def __init__(self, root: Any, param: str, relaxed: list[str] | None) -> None:
        self._root = root
        self._param = param
        self._relaxed = relaxed
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
            "format": self._format,
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

    def _relax(self, error: InvalidParameter) -> None:
        """Record that what an error names is left out; raises the error if nothing may be."""
        if self._relaxed is None:
            raise error
        if len(self._relaxed) < MAX_RELAXED:
            self._relaxed.append(error.param or self._param)

    def _schema(self, schema: Any, path: str, depth: int) -> Schema:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            self._relax(_invalid(path, "a schema is an object or a boolean"))
            return True
        if depth > MAX_DEPTH:
            self._relax(_invalid(path, f"a schema is nested {MAX_DEPTH} levels deep at most"))
            return True
        if depth and not str(schema.get("$id") or "#").startswith("#"):  # it changes what references mean
            self._relax(_unenforceable(path, "$id"))
            return True
        kept: dict[str, Any] = {}
        for keyword, value in schema.items():
            if value is None and keyword != "const":  # what many libraries write for a keyword that is not there
                continue
            place = _place(keyword, schema)
            if keyword in keywords.CONTENT_ANNOTATIONS or _is_annotation(keyword, value):
                if self._relaxed is not None and value not in formats.NUMBER_FORMATS:
                    self._relax(_unenforceable(path, keyword))
                continue
            try:
                if (read := self._readers.get(place)) is not None:
                    kept[place] = read(value, f"{path}.{keyword}", depth + 1)
                elif not _constrains_nothing(keyword, value):
                    raise _unenforceable(path, keyword)
            except InvalidParameter as error:
                self._relax(error)
        self._relax_dependents(schema, kept, path)
        self._relax_ranges(kept, path)
        kept = self._without_dates(kept)
        if "oneOf" in kept and self._relaxed is not None:
            kept = self._any_of(kept, schema["oneOf"], path)
        return self._or_null(kept, path) if schema.get("nullable") is True else kept

    def _relax_dependents(self, schema: dict[str, Any], kept: dict[str, Any], path: str) -> None:
        """Leave out the keywords that concern what another one does not name, where that one is left out."""
        for keyword, others in keywords.DEPENDENT.items():
            if keyword in kept and any(schema.get(other) is not None and other not in kept for other in others):
                del kept[keyword]
                self._relax(_invalid(f"{path}.{keyword}", "it cannot be enforced without those that it depends on"))

    def _relax_ranges(self, kept: dict[str, Any], path: str) -> None:
        # A mask cannot keep a name from being written twice, and a name that is written twice is one property.
        if kept.get("minProperties", 0) > max(1, len(kept.get("required", ()))):
            problem = "more than 1 cannot be enforced. List names under 'required'"
            self._relax(_invalid(f"{path}.minProperties", problem))
            del kept["minProperties"]
        for place, part, bound in list(unenforced_bounds(kept)):
            problem = "it cannot be enforced in a range that ends before the next integer. Widen the range"
            self._relax(_invalid(f"{path}.{place}{bound}", problem))
            del part[bound]

    @staticmethod
    def _without_dates(kept: dict[str, Any]) -> dict[str, Any]:
        """Return a schema with the formats of dates as patterns."""
        if (pattern := formats.PATTERNS.get(kept.get("format", ""))) is None:
            return kept
        del kept["format"]
        return kept | {"allOf": [*kept.get("allOf", []), {"pattern": pattern}]}

    def _any_of(self, kept: dict[str, Any], stated: Any, path: str) -> dict[str, Any]:
        """Return a schema with `oneOf` as `anyOf`, which the grammar library enforces whatever the alternatives are."""
        if not are_exclusive(stated, self._root):
            self._relax(_invalid(f"{path}.oneOf", "two of its schemas may hold for one value. Use 'anyOf'"))
        alternatives = {"anyOf": kept.pop("oneOf")}
        return kept | ({"allOf": [*kept.get("allOf", []), alternatives]} if "anyOf" in kept else alternatives)

    def _or_null(self, kept: dict[str, Any], path: str) -> dict[str, Any]:
        """Return a schema that holds for null too; OpenAPI 3.0 says so only beside `type`.

        Source: https://spec.openapis.org/oas/v3.0.3#schema-object (nullable)
        """
        values = kept.get("enum", [kept["const"]] if "const" in kept else [None])
        if "type" in kept and None in values:
            stated = kept["type"] if isinstance(kept["type"], list) else [kept["type"]]
            return kept | {"type": list(dict.fromkeys([*stated, "null"]))}
        self._relax(_unenforceable(path, "nullable"))
        return {"anyOf": [kept, {"type": "null"}]}

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
    def _format(name: Any, path: str, _depth: int) -> str:
        if not isinstance(name, str) or name not in formats.FORMATS:
            raise _invalid(path, f"a format is one of {', '.join(sorted(formats.FORMATS))}")
        return name

    def _reference(self, reference: Any, path: str, _depth: int) -> str:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise _invalid(path, "a reference is a JSON pointer into this schema, such as '#/$defs/name'")
        if reference not in self._names:
            if len(self._names) > MAX_DEFINITIONS:
                raise _invalid(path, f"a schema refers to {MAX_DEFINITIONS} definitions at most")
            try:
                definition = target(reference, self._root)
            except LookupError:
                raise _invalid(path, "the reference leads nowhere") from None
            name = str(len(self._names))
            self._names[reference] = f"#/$defs/{name}"
            self._pending.append((name, definition, f"{self._param}.{_dotted(reference)}"))
        return self._names[reference]


def _place(keyword: str, schema: dict[str, Any]) -> str:
    """Return the keyword of draft 2020-12 for one of a schema, which may state a tuple as earlier drafts do."""
    if isinstance(schema.get("items"), list) and "prefixItems" not in schema:
        return {"items": "prefixItems", "additionalItems": "items"}.get(keyword, keyword)
    return keyword


def _constrains_nothing(keyword: str, value: Any) -> bool:
    if keyword in keywords.NEUTRAL_VALUES:
        return value in keywords.NEUTRAL_VALUES[keyword]
    return keyword in keywords.ANNOTATIONS or (keyword.startswith("x-") and keyword != "x-guidance")


def _is_annotation(keyword: str, value: Any) -> bool:
    """Return whether a keyword is a format that is not enforced, as JSON Schema has all of them by default."""
    return keyword == "format" and isinstance(value, str) and value not in formats.FORMATS


def _dotted(reference: str) -> str:
    return reference[2:].replace("/", ".")[:MAX_ECHOED_CHARS]


def _check_writable(value: Any, path: str) -> None:
    if isinstance(value, str) and UNWRITABLE.search(value):
        raise _invalid(path, "a control character other than \\b, \\f, \\n, \\r and \\t cannot be written")


def _unenforceable(path: str, keyword: str) -> InvalidParameter:
    name = keyword[:MAX_ECHOED_CHARS]
    remedy = keywords.REMEDIES.get(keyword, "Leave it out, and check the answer yourself.")
    return _invalid(f"{path}.{name}", f"the keyword '{name}' cannot be enforced. {remedy}")


def _invalid(path: str, problem: str) -> InvalidParameter:
    return InvalidParameter(f"Invalid '{path}': {problem.rstrip('.')}.", param=path)
