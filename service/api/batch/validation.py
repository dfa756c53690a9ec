"""All lines of an input file, checked against each other and the served model before any of them runs.

Source: https://platform.openai.com/docs/guides/batch (limits, and the errors of a failed batch)
"""

from collections.abc import Collection
from typing import Any, BinaryIO, NamedTuple

from service.api.batch.lines import BadLine, BatchLine, numbered_lines, parse_line

MAX_LINES = 50_000  # OpenAI's
MAX_ERRORS = 1_000


class Validated(NamedTuple):
    """What a file holds, or what is wrong with it."""

    num_lines: int
    model: str | None
    errors: list[dict[str, Any]]


def validate(file: BinaryIO, *, endpoint: str, models: Collection[str], max_line_bytes: int) -> Validated:
    """Read a whole input file.

    Args:
        file: its content.
        endpoint: the route that the batch names.
        models: the names of the served model.
        max_line_bytes: the longest line.
    """
    errors: list[dict[str, Any]] = []
    num_errors = num_lines = 0
    seen: set[str] = set()
    model: str | None = None
    for number, text in numbered_lines(file, max_line_bytes):
        num_lines += 1
        if num_lines > MAX_LINES:
            message = f"The file has more than {MAX_LINES} requests. Divide it."
            return Validated(num_lines, model, [_error("too_many_tasks", message, line=number)])
        try:
            line = parse_line(text)
            _check(line, endpoint, models, seen)
            seen.add(line.custom_id)
            model = model or line.body["model"]
        except BadLine as error:
            num_errors += 1
            if num_errors <= MAX_ERRORS:
                errors.append(_error(error.code, error.message, param=error.param, line=number))
    if not num_lines:
        errors = [_error("empty_file", "The file has no requests.")]
    if num_errors > MAX_ERRORS:
        errors.append(_error("too_many_errors", f"{num_errors - MAX_ERRORS} more lines are at fault."))
    return Validated(num_lines, model, errors)


def _check(line: BatchLine, endpoint: str, models: Collection[str], seen: Collection[str]) -> None:
    if line.custom_id in seen:
        message = "The custom_id for this request is a duplicate of another request. It must be unique in a batch."
        raise BadLine("duplicate_custom_id", message, "custom_id")
    if line.url != endpoint:
        raise BadLine("url_mismatch", f"The url of this request is not the batch's endpoint, '{endpoint}'.", "url")
    model = line.body.get("model")
    if not isinstance(model, str):
        raise BadLine("missing_required_parameter", "Missing required parameter: 'body.model'.", "body.model")
    if model not in models:
        served = ", ".join(f"'{name}'" for name in models)
        raise BadLine(
            "model_not_found", f"The model '{model[:64]}' does not exist here. Served: {served}.", "body.model"
        )


def _error(code: str, message: str, *, param: str | None = None, line: int | None = None) -> dict[str, Any]:
    return {"code": code, "message": message, "param": param, "line": line}
