"""The errors of a status, read from the classes of errors."""

import inspect
from collections.abc import Iterator

from service.errors import EngineError, RequestError


def causes(status: int) -> str:
    """Return the codes that an error with this status may have, each with what it means, as a list in Markdown."""
    kinds = [kind for kind in (*_below(RequestError), *_below(EngineError), EngineError) if kind.status == status]
    return "\n".join(
        f"- `{kind.code}`: {(inspect.getdoc(kind) or '').partition(chr(10))[0]}" for kind in kinds if kind.code
    )


def _below[T](kind: type[T]) -> Iterator[type[T]]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)
