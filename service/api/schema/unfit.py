"""The field at fault in a body that is nearly JSON: a number that is not finite, or text that is not Unicode."""

import json
import math
from typing import Any, NamedTuple

MAX_NAME_CHARS = 64  # of a field in an error


class UnfitValue(NamedTuple):
    """A value that a client's library writes although JSON, or UTF-8, has none such."""

    path: str
    reason: str


def unfit_value(content: bytes) -> UnfitValue | None:
    """Return the first such value of a text that a strict parser has refused; None if the text has another fault.

    It reads the text once more, leniently, so it is only for refused bodies.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    remaining: list[tuple[str, Any]] = [("", document)]
    while remaining:
        path, value = remaining.pop()
        if reason := _reason(value):
            return UnfitValue(path, reason) if path else None
        remaining += reversed(_parts(path, value))
    return None


def _reason(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "it must be a finite number."
    if (isinstance(value, str) and not _is_unicode(value)) or (
        isinstance(value, dict) and not all(map(_is_unicode, value))
    ):
        return "it has a lone surrogate, which is not a character. Send text that UTF-8 can encode."
    return ""


def _parts(path: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"{path}.{name[:MAX_NAME_CHARS]}" if path else name[:MAX_NAME_CHARS], v) for name, v in value.items()]
    if isinstance(value, list):
        return [(f"{path}[{i}]", item) for i, item in enumerate(value)]
    return []


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
