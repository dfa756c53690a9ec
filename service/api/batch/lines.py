"""The lines of a batch's input file, each checked by itself.

    {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {...}}

Source: https://platform.openai.com/docs/api-reference/batch/request-input
"""

import codecs
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from pydantic_core import from_json

from service.errors import ServiceError

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")


class BadLine(ServiceError):
    """A line is not a request that a batch can have."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of a batch."""

    custom_id: str
    url: str
    body: dict[str, Any]


def numbered_lines(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, bytes | BadLine]]:
    """Yield the lines that are not blank, with their numbers from 1 on; for one that is too long, the reason."""
    number = 0
    while text := file.readline(max_bytes + 1):
        number += 1
        if number == 1:
            text = text.removeprefix(codecs.BOM_UTF8)
        if len(text) > max_bytes:
            while text and not text.endswith(b"\n"):
                text = file.readline(max_bytes)
            message = f"This line has more than {max_bytes} bytes, the limit of a request's body."
            yield number, BadLine("request_too_large", message)
        elif text.strip():
            yield number, text


def parse_line(text: bytes | BadLine, urls: Collection[str] = URLS) -> BatchLine:
    """Return the request of a line that `numbered_lines` found.

    Args:
        text: the line.
        urls: the routes that it may ask.

    Raises:
        BadLine: it is none.
    """
    if isinstance(text, BadLine):
        raise text
    try:
        value = from_json(text, allow_inf_nan=False, cache_strings=False)
    except ValueError:
        raise BadLine("invalid_json_line", "This line is not parseable as valid JSON.") from None
    if not isinstance(value, dict):
        raise BadLine("invalid_json_line", "This line is not a JSON object.")
    for name in ("custom_id", "method", "url", "body"):
        if value.get(name) in (None, ""):
            raise BadLine("missing_required_parameter", f"Missing required parameter: '{name}'.", name)
    if unknown := value.keys() - {"custom_id", "method", "url", "body"}:
        name = min(unknown)[:64]
        raise BadLine("unknown_parameter", f"Unknown parameter: '{name}'. Leave it out, or correct its name.", name)
    if not isinstance(value["custom_id"], str):
        raise BadLine("invalid_value", "Invalid 'custom_id': it must be a string.", "custom_id")
    if value["method"] != "POST":
        raise BadLine("invalid_method", "Invalid 'method': it must be 'POST'.", "method")
    if value["url"] not in urls:
        raise BadLine("invalid_url", f"Invalid 'url': it must be one of {', '.join(urls)}.", "url")
    body = value["body"]
    if not isinstance(body, dict):
        raise BadLine("invalid_value", "Invalid 'body': it must be an object.", "body")
    if body.get("stream"):
        raise BadLine("invalid_value", "Invalid 'body.stream': a batch cannot have a stream.", "body.stream")
    return BatchLine(value["custom_id"], value["url"], body)
