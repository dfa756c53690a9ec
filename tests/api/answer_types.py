"""Answers against the types that the OpenAPI document describes them by."""

from functools import cache
from typing import Any

from pydantic import TypeAdapter


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def as_typed(kind: type, answer: Any) -> Any:
    """Return the answer with the fields of its type alone; raises ValidationError for one that is missing or wrong."""
    return _adapter(kind).validate_python(answer)
