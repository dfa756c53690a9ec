"""JSON objects that clients send: parsed within bounds, every field known, errors named by the field's path.

JSON is parsed with bounded depth and digits, without NaN and without names that an object has twice, of which every
parser keeps another; so a hostile body can only be refused.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import count, islice
from typing import Any, ClassVar, Self

import jiter
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from service.api.schema.unfit import unfit_value
from service.api.structure import check_structure
from service.errors import (
    InvalidParameter,
    MissingParameter,
    RequestError,
    UnknownParameter,
    UnsupportedParameter,
)

# In one request: messages, their parts, tools, tool calls. Ten times as many as fit into a context of a million tokens
# would take seconds to check.
MAX_OBJECTS = 16384
MAX_ECHOED_CHARS = 64  # of a client's field name in an error

# Fields that clients know from OpenAI or vLLM and that are not supported here, each with the values at which it has no
# effect. Such a value, or null, is accepted and dropped; any other is refused by name.
NeutralValues = Mapping[str, tuple[Any, ...]]


class WireObject(BaseModel):
    """A JSON object whose every field is known."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    neutral_values: ClassVar[NeutralValues] = {}
    remedies: ClassVar[Mapping[str, str]] = {}  # what to send instead of a field that is not supported
    nested: ClassVar[dict[str, "type[WireObject]"]] = {}
    # The values of `type` that are supported, where others have other fields: they are refused by their type first.
    supported_types: ClassVar[tuple[str, ...]] = ()
    bulk: ClassVar[Mapping[str, Any]] = {}  # fields that only prompts are made of, with values that stand for them

    def without_bulk(self) -> Self:
        """Return the object as far as it matters once its prompts are made."""
        return self.model_copy(update=dict(self.bulk)) if self.bulk else self

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
        UnknownParameter, UnsupportedParameter, MissingParameter, InvalidParameter: a field is at fault.
    """
    check_structure(content)
    try:
        document = jiter.from_json(content, allow_inf_nan=False, cache_mode="none", catch_duplicate_keys=True)
    except ValueError as error:
        if (unfit := unfit_value(content)) is not None:
            raise InvalidParameter(f"Invalid '{unfit.path}': {unfit.reason}", param=unfit.path) from None
        raise RequestError(f"The request's body is not valid JSON: {error}.") from None
    if not isinstance(document, dict):
        raise RequestError("The request's body must be a JSON object.")
    return checked(kind, document)


def checked[T: WireObject](kind: type[T], document: dict[str, Any]) -> T:
    """Return the checked object of a parsed JSON object.

    Raises:
        UnknownParameter, UnsupportedParameter, MissingParameter, InvalidParameter: a field is at fault.
    """
    try:
        parsed = kind.model_validate(_without_neutral_fields(kind, document, "", count(1)))
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise _request_error(details[0]) from None  # the chained error would quote the prompt
    parsed.check_consistency()
    return parsed


def _without_neutral_fields(
    kind: type[WireObject], document: dict[str, Any], path: str, numbers: Iterator[int]
) -> dict[str, Any]:
    """Return the fields that have an effect, nested objects included; `numbers` counts the objects of the request.

    Raises:
        InvalidParameter: there are too many objects.
        UnknownParameter: no interface has the field.
        UnsupportedParameter: the field is known, but not supported with this value, or the object's type is not.
    """
    _count(numbers, 1, path)
    _check_type(kind, document.get("type"), path)
    kept: dict[str, Any] = {}
    names = _field_names(kind)
    for name, value in document.items():
        neutral = kind.neutral_values.get(name)
        if neutral is None and name not in names:
            raise UnknownParameter(path + name[:MAX_ECHOED_CHARS])
        if neutral is not None and not _is_neutral(value, neutral):
            raise UnsupportedParameter(path + name, kind.remedies.get(name, ""))
        if neutral is None and value is not None:
            kept[name] = _nested(kind.nested.get(name), value, path + name, numbers)
    return kept


@cache
def _field_names(kind: type[WireObject]) -> frozenset[str]:
    return frozenset(field.alias or name for name, field in kind.model_fields.items())


def _count(numbers: Iterator[int], num_objects: int, path: str) -> None:
    if next(islice(numbers, num_objects - 1, None)) > MAX_OBJECTS:
        param = path.rstrip(".")
        raise InvalidParameter(f"Invalid '{param}': a request has at most {MAX_OBJECTS} objects.", param=param)


def _check_type(kind: type[WireObject], stated: Any, path: str) -> None:
    if kind.supported_types and isinstance(stated, str) and stated not in kind.supported_types:
        supported = ", ".join(f"'{name}'" for name in kind.supported_types)
        raise UnsupportedParameter(f"{path}type", f"it is '{stated[:MAX_ECHOED_CHARS]}'. Supported: {supported}.")


def _nested(kind: type[WireObject] | None, value: Any, path: str, numbers: Iterator[int]) -> Any:
    if kind is None:
        if isinstance(value, list) and value and isinstance(value[0], dict):
            _count(numbers, len(value), path)
        return value
    if isinstance(value, dict):
        return _without_neutral_fields(kind, value, f"{path}.", numbers)
    if isinstance(value, list):
        return [_nested(kind, item, f"{path}[{i}]", numbers) for i, item in enumerate(value)]
    return value


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Return whether a value is null or one of the neutral ones, of the same type: True is not 1 here."""
    return value is None or any(type(value) is type(other) and value == other for other in neutral)


def _request_error(details: ErrorDetails) -> RequestError:
    param = ""
    for step in details["loc"]:
        param += f"[{step}]" if isinstance(step, int) else f".{step[:MAX_ECHOED_CHARS]}" if param else str(step)
    if details["type"] == "missing":
        return MissingParameter(param)
    if details["type"] == "extra_forbidden":
        return UnknownParameter(param)
    return InvalidParameter(f"Invalid '{param}': {details['msg']}.", param=param)
