"""The errors of operations, read from the classes of errors."""

import inspect
from collections.abc import Collection
from typing import Any

from service.api.openapi.answer_object import AnswerObject
from service.api.openapi.schemas import reference
from service.errors import EngineError, RequestError


def error_responses(statuses: Collection[int], answer: type[AnswerObject]) -> dict[str, Any]:
    """Return the response of each status, which names the codes that the error may have."""
    return {str(status): _response(status, answer) for status in sorted(statuses)}


def _response(status: int, answer: type[AnswerObject]) -> dict[str, Any]:
    kinds = [kind for kind in (*_below(RequestError), *_below(EngineError), EngineError) if kind.status == status]
    causes = [f"- `{kind.code}`: {(inspect.getdoc(kind) or '').partition(chr(10))[0]}" for kind in kinds if kind.code]
    response: dict[str, Any] = {
        "description": "\n".join(causes),
        "content": {"application/json": {"schema": reference(answer)}},
    }
    if status in (429, 503):
        wait = {"description": "Seconds to wait before the next try.", "schema": {"type": "string"}}
        response["headers"] = {"Retry-After": wait}
    return response


def _below(kind: type[Any]) -> list[type[Any]]:
    return [found for child in kind.__subclasses__() for found in (child, *_below(child))]
