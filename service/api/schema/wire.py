"""JSON objects that clients send: parsed within bounds, and sorted by one rule into fields that count and that do not.

Each class states the rule as tables. Its model fields are enforced. `refused` lists promises that this server does not
keep, `hints` lists fields that ask for no promise, and `effective_values` the values of fields at which they have an
effect. A hint that has no effect here, or a field that no class knows, is accepted and recorded in `ignored`. Null is
the same as absent everywhere.

JSON is parsed with bounded depth and digits; NaN and duplicate names, which parsers resolve differently, are rejected.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar, Final, get_args, override

import jiter
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, core_schema, from_json, to_json

from service.api.schema.docstrings import COMMON, field_docstrings
from service.api.schema.ignored import IgnoredField
from service.api.schema.unfit import unfit_value
from service.api.structure import check_structure
from service.errors import (
    InvalidParameter,
    MissingParameter,
    RequestError,
    UnsupportedParameter,
)

# In one request: messages, their parts, tools, tool calls. Ten times as many as fit into a context of a million tokens
# would take seconds to check.
MAX_OBJECTS = 16384
UNION_MEMBER = "literal["  # how pydantic names one of the types that a field may have
MAX_ECHOED_CHARS = 64  # of a client's field name in an error

MAX_IGNORED = 1024  # ignored fields that are recorded of one request

# Fields by name, each with the values at which it has no effect. None stands for every value.
NeutralValues = Mapping[str, tuple[Any, ...] | None]
ANY: Final = None


@dataclass(frozen=True)
class OrText:
    """Of a list of parts: clients may send a text instead, which is one part of this type."""

    type: str = "text"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of the list with a text read as a part."""
        parts = handler(source)
        either = core_schema.union_schema([core_schema.str_schema(), parts])
        return core_schema.no_info_before_validator_function(self._parts, parts, json_schema_input_schema=either)

    def _parts(self, value: Any) -> Any:
        return [{"type": self.type, "text": value}] if isinstance(value, str) else value


class WireObject(BaseModel):
    """A JSON object of a request; a string below a field, or in `COMMON`, describes it to clients."""

    # A start has no time for validators: each body's are built when one is first checked.
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True)

    hints: ClassVar[NeutralValues] = {}  # accepted at any value, and reported at other values than these
    refused: ClassVar[NeutralValues] = {}  # accepted at these values only
    effective_values: ClassVar[NeutralValues] = {}  # of fields that are dropped and reported at other values than these
    remedies: ClassVar[Mapping[str, str]] = {}  # what to send instead of a field that is refused
    blank: ClassVar[tuple[str, ...]] = ()  # fields that are absent if they are empty, as typed clients write them
    # The classes that read the objects in fields, where those of the fields' types are not enough.
    read_as: ClassVar[Mapping[str, "type[WireObject]"]] = {}
    # The values of `type` that are supported, where others have other fields: they are refused by their type first.
    supported_types: ClassVar[tuple[str, ...]] = ()
    kinds: ClassVar[Mapping[str, "type[WireObject]"]] = {}  # by the values of `type`, of an object of several kinds
    leaves_out_other_types: ClassVar[bool] = False  # instead: they are accepted and reported, and only `type` is kept
    bulk: ClassVar[Mapping[str, Any]] = {}  # fields that only prompts are made of, with short values in their place
    keeps_sent: ClassVar[tuple[str, ...]] = ()  # fields with lists of objects whose `sent` is what the client sent

    @cached_property  # which `checked` sets: a private attribute would cost each nested object a call
    def ignored(self) -> tuple[IgnoredField, ...]:
        """The fields that were accepted and have no effect, those of nested objects included."""
        return ()

    @cached_property  # which `checked` sets
    def sent(self) -> dict[str, Any] | None:
        """The object as the client sent it, key by key; None if this service made it of another dialect's."""
        return None

    def ignore(self, paths: Iterable[str]) -> None:
        """Record fields that have no effect, or parts of fields."""
        if fields := tuple(map(IgnoredField, paths)):
            vars(self)["ignored"] = (*self.ignored, *fields)

    @classmethod
    def rewritten(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Return an object that means the same in fewer shapes, such as tools for OpenAI's older functions."""
        return document

    def light_json(self) -> bytes:
        """Return the object as far as it matters once its prompts are made, for `parse_light` in another process."""
        return self.json_with(self.bulk)

    def json_with(self, replaced: Mapping[str, Any]) -> bytes:
        """Return the object for `parse_light`, with other values in place of some that it has."""
        present = {name: value for name, value in replaced.items() if getattr(self, name) is not None}
        stated = self.model_dump(by_alias=True, exclude_unset=True, exclude=set(replaced))
        return to_json([stated | present, self.ignored])

    @classmethod
    @override
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler, /) -> dict[str, Any]:
        """Return the JSON Schema of what clients may send: unknown fields too, and null for absent fields."""
        reference = handler(core_schema)
        schema = handler.resolve_ref_schema(reference)
        schema.pop("additionalProperties", None)
        descriptions = COMMON | field_docstrings(cls)
        for name, field in cls.model_fields.items():
            alias = field.alias or name
            property_ = schema["properties"][alias]
            if alias not in schema.get("required", ()) and {"type": "null"} not in property_.get("anyOf", ()):
                about = {"default": property_.pop("default")} if "default" in property_ else {}
                property_ = {"anyOf": [property_, {"type": "null"}], **about}
            schema["properties"][alias] = property_ | {"description": descriptions[name]}
        return reference

    def check_consistency(self) -> None:
        """Check fields against each other, which Pydantic's validators would report without the field's name.

        Raises:
            InvalidParameter: two fields contradict.
        """


def parse[T: WireObject](kind: type[T], content: bytes) -> T:
    """Return the checked object of a JSON text.

    Raises:
        RequestError: the text is not a JSON object, or a very large one.
        InvalidParameter: a number is not finite, or a text is not Unicode.
        UnsupportedParameter, MissingParameter, InvalidParameter: a field is at fault.
    """
    check_structure(content)
    try:
        # Defends against T4.
        document = jiter.from_json(content, allow_inf_nan=False, cache_mode="none", catch_duplicate_keys=True)
    except ValueError as error:
        if (unfit := unfit_value(content)) is not None:
            raise InvalidParameter(f"Invalid '{unfit.path}': {unfit.reason}", param=unfit.path) from None
        raise RequestError(f"The request's body is not valid JSON: {error}.") from None
    if not isinstance(document, dict):
        raise RequestError("The request's body must be a JSON object.")
    return checked(kind, document)


def parse_light[T: WireObject](kind: type[T], content: bytes) -> T:
    """Return the object of this kind that `light_json` has written."""
    fields, ignored = from_json(content)
    parsed = kind.model_validate(fields)
    vars(parsed)["ignored"] = tuple(IgnoredField(*field) for field in ignored)
    return parsed


def checked[T: WireObject](kind: type[T], document: dict[str, Any]) -> T:
    """Return the checked object of a parsed JSON object.

    Raises:
        UnsupportedParameter, MissingParameter, InvalidParameter: a field is at fault.
    """
    sieve = _Sieve()
    fields = sieve.effective(kind, document, "")
    try:
        parsed = kind.model_validate(fields)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise _request_error(details[0]) from None  # the chained error would quote the prompt
    if sieve.ignored:
        vars(parsed)["ignored"] = tuple(sieve.ignored.values())
    for name, items in sieve.sent.items():
        for item, sent in zip(getattr(parsed, name), items, strict=True):
            vars(item)["sent"] = sent
    parsed.check_consistency()
    return parsed


class _Sieve:
    """Sorts the fields of one request."""

    def __init__(self) -> None:
        self._num_objects = 0
        self.ignored: dict[tuple[type[WireObject], str], IgnoredField] = {}
        self.sent: dict[str, Any] = {}  # the lists of fields that keep what the client sent

    def effective(self, kind: type[WireObject], document: dict[str, Any], path: str) -> dict[str, Any]:
        """Return the fields that have an effect, nested objects included.

        Raises:
            InvalidParameter: there are too many objects.
            UnsupportedParameter: a promise is refused, or the object's type is.
        """
        self._count(1, path)
        document = kind.rewritten(document)
        if kind.supported_types:
            stated = document.get("type")
            is_blank = stated == "" and "type" in kind.blank
            if isinstance(stated, str) and stated not in kind.supported_types and not is_blank:
                return self._of_other_type(kind, stated, path)
            if kind.kinds and isinstance(stated, str):
                kind = kind.kinds[stated]
        effective: dict[str, Any] = {}
        nested = _nested(kind)
        for name, value in document.items():
            if value is None or (value == "" and name in kind.blank):
                continue
            if name in nested:
                if name in kind.effective_values and not _is_neutral(value, kind.effective_values[name]):
                    self._ignore(kind, name, path)
                    continue
                if name in kind.keeps_sent:
                    self.sent[name] = value
                is_plain = nested[name] is None and not isinstance(value, list)
                effective[name] = value if is_plain else self._nested(nested[name], value, path + name)
            elif name in kind.refused:
                if not _is_neutral(value, kind.refused[name]):
                    raise UnsupportedParameter(path + name, kind.remedies.get(name, ""))
            elif name not in kind.hints or not _is_neutral(value, kind.hints[name]):
                self._ignore(kind, name, path)
        return effective

    def _of_other_type(self, kind: type[WireObject], stated: str, path: str) -> dict[str, Any]:
        if not kind.leaves_out_other_types:
            supported = ", ".join(f"'{name}'" for name in kind.supported_types)
            message = f"it is '{stated[:MAX_ECHOED_CHARS]}'. Supported: {supported}."
            raise UnsupportedParameter(f"{path}type", message)
        self._note(kind, stated, IgnoredField(path.rstrip(".")))
        return {"type": stated}

    def _ignore(self, kind: type[WireObject], name: str, path: str) -> None:
        is_known = name in kind.hints or name in kind.effective_values
        self._note(kind, name, IgnoredField(path + name[:MAX_ECHOED_CHARS], is_known=is_known))

    def _note(self, kind: type[WireObject], name: str, field: IgnoredField) -> None:
        """Record a field where the request has it first: a long chat may repeat it in every message."""
        key = kind, name[:MAX_ECHOED_CHARS]
        if key not in self.ignored and len(self.ignored) < MAX_IGNORED:
            self.ignored[key] = field

    def _nested(self, kind: type[WireObject] | None, value: Any, path: str) -> Any:
        if kind is None:
            if isinstance(value, list) and value and isinstance(value[0], dict):
                self._count(len(value), path)
            return value
        if isinstance(value, dict):
            return self.effective(kind, value, f"{path}.")
        if isinstance(value, list):
            return [self._nested(kind, item, f"{path}[{i}]") for i, item in enumerate(value)]
        return value

    def _count(self, num_objects: int, path: str) -> None:
        self._num_objects += num_objects
        if self._num_objects > MAX_OBJECTS:
            param = path.rstrip(".")
            raise InvalidParameter(f"Invalid '{param}': a request has at most {MAX_OBJECTS} objects.", param=param)


@cache
def _nested(kind: type[WireObject]) -> Mapping[str, type[WireObject] | None]:
    """Return the class of the objects in each field, None for other values, by the fields' names."""
    found = {field.alias or name: _object_in(field.annotation) for name, field in kind.model_fields.items()}
    return {**found, **kind.read_as}


def _object_in(annotation: Any) -> type[WireObject] | None:
    """Return the class of the objects that a type allows, be they in a list; of several kinds, the first."""
    if isinstance(annotation, type) and issubclass(annotation, WireObject):
        return annotation
    return next((kind for each in get_args(annotation) if (kind := _object_in(each)) is not None), None)


def _is_neutral(value: Any, neutral: tuple[Any, ...] | None) -> bool:
    """Return whether a value is one of the neutral ones, of the same type: True is not 1 here."""
    return neutral is None or any(type(value) is type(other) and value == other for other in neutral)


def _request_error(details: ErrorDetails) -> RequestError:
    param = ""
    for step in details["loc"]:
        if isinstance(step, str) and step.startswith(UNION_MEMBER):
            continue
        param += f"[{step}]" if isinstance(step, int) else f".{step[:MAX_ECHOED_CHARS]}" if param else str(step)
    if details["type"] == "union_tag_not_found":
        return MissingParameter(f"{param}.type")
    if details["type"] == "missing":
        return MissingParameter(param)
    return InvalidParameter(f"Invalid '{param}': {details['msg']}.", param=param)
