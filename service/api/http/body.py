"""A request's bytes to a checked request, or the 400 that names the field at fault.

JSON is parsed with bounded depth and digits, and without NaN, so that no body can do more than be refused.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request
from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import ClientDisconnect

from service.api.schema.requests import GenerationRequest
from service.api.schema.unsupported import is_neutral
from service.api.schema.wire import WireObject
from service.errors import (
    ClientGone,
    InvalidParameter,
    MissingParameter,
    RequestError,
    UnknownParameter,
    UnsupportedParameter,
)

MAX_ECHOED_CHARS = 64


def json_body[T: GenerationRequest](kind: type[T]) -> Callable[[Request], Awaitable[T]]:
    """Return the FastAPI dependency that reads a body of this kind."""

    async def read_body(request: Request) -> T:
        try:
            content = await request.body()
        except ClientDisconnect:
            raise ClientGone from None
        return parse(kind, content)

    return read_body


def parse[T: GenerationRequest](kind: type[T], content: bytes) -> T:
    """Check a body.

    Raises:
        RequestError: the body is not a JSON object.
        UnknownParameter, UnsupportedParameter, MissingParameter, InvalidParameter: a field is at fault.
    """
    try:
        document = from_json(content, allow_inf_nan=False, cache_strings=False)
    except ValueError as error:
        raise RequestError(f"The request's body is not valid JSON: {error}.") from None
    if not isinstance(document, dict):
        raise RequestError("The request's body must be a JSON object.")
    try:
        body = kind.model_validate(_without_neutral_fields(kind, document, ""))
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise _refusal(details[0]) from None  # the chained error would quote the prompt
    body.refuse_contradictions()
    return body


def _without_neutral_fields(kind: type[WireObject], document: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the fields that ask for something, nested objects included.

    Raises:
        UnknownParameter: a field is in nobody's interface.
        UnsupportedParameter: a field is known, but not served with this value.
    """
    kept: dict[str, Any] = {}
    for name, value in document.items():
        neutral = kind.neutral_values.get(name)
        if neutral is None and name not in kind.model_fields:
            raise UnknownParameter(path + name[:MAX_ECHOED_CHARS])
        if neutral is not None and not is_neutral(value, neutral):
            raise UnsupportedParameter(path + name)
        if neutral is None and value is not None:
            kept[name] = _nested(kind.nested.get(name), value, path + name)
    return kept


def _nested(kind: type[WireObject] | None, value: Any, path: str) -> Any:
    if kind is None:
        return value
    if isinstance(value, dict):
        return _without_neutral_fields(kind, value, f"{path}.")
    if isinstance(value, list):
        return [_nested(kind, item, f"{path}[{i}]") if isinstance(item, dict) else item for i, item in enumerate(value)]
    return value


def _refusal(details: ErrorDetails) -> RequestError:
    param = ""
    for step in details["loc"]:
        param += f"[{step}]" if isinstance(step, int) else f".{step[:MAX_ECHOED_CHARS]}" if param else str(step)
    if details["type"] == "missing":
        return MissingParameter(param)
    if details["type"] == "extra_forbidden":
        return UnknownParameter(param)
    return InvalidParameter(f"Invalid '{param}': {details['msg']}.", param=param)
