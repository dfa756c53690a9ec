"""The query of a URL as a checked object, each parameter at most once."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request

from service.api.http.call import call_of
from service.api.schema.wire import WireObject, checked
from service.errors import InvalidParameter

MAX_DIGITS = 10


def query_of[T: WireObject](kind: type[T]) -> Callable[[Request], Awaitable[T]]:
    """Return a FastAPI dependency that reads and checks a query of this kind.

    FastAPI's own `Query` takes the last of two equal names and has no word for fields that are accepted without effect.
    """

    async def read(request: Request) -> T:
        document: dict[str, Any] = {}
        for name, value in request.query_params.multi_items():
            if name in document:
                raise InvalidParameter(f"Invalid '{name[:64]}': it is there twice.", param=name[:64])
            document[name] = as_number(kind, name, value)
        query = checked(kind, document)
        call_of(request.scope).ignored.add(query.ignored)
        return query

    return read


def as_number(kind: type[WireObject], name: str, text: str) -> int | str:
    """Return the number that a text writes, if its field is one; the text itself otherwise."""
    field = kind.model_fields.get(name)
    is_number = field is not None and field.annotation is int and text.isascii() and text.isdecimal()
    return int(text) if is_number and len(text) <= MAX_DIGITS else text
