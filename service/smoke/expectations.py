"""Assertions about answers, which raise CheckFailed with the expected and actual values and the answer."""

from collections.abc import Sequence
from typing import Any

from service.smoke.client import json_of
from service.smoke.failures import CheckFailed, Reply

ERROR_KEYS = ("message", "type", "param", "code")
KIND_NAMES = {str: "a string", int: "a whole number", float: "a number", list: "a list", dict: "an object"}


def expect_status(reply: Reply, status: int) -> None:
    """Expect a status.

    Raises:
        CheckFailed: the status differs; for 401 and 403, the message suggests a flag.
    """
    if reply.status != status:
        raise CheckFailed(f"answered {reply.status} instead of {status}{_hint(reply)}", reply)


def take(reply: Reply | None, document: Any, path: str, kind: type) -> Any:
    """Return the value at a dotted path of a document, such as `choices.0.message`.

    Raises:
        CheckFailed: the path does not exist, or its value has the wrong type.
    """
    value = document
    steps = path.split(".")
    for i, step in enumerate(steps):
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            raise CheckFailed(f"the answer has no {'.'.join(steps[: i + 1])}", reply) from None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise CheckFailed(f"{path} is {value!r:.60}, not {KIND_NAMES[kind]}", reply)
    return value


def expect_value(reply: Reply | None, document: Any, path: str, expected: Sequence[str]) -> str:
    """Expect one of several strings at a path, and return it.

    Raises:
        CheckFailed: the value is not expected.
    """
    value = take(reply, document, path, str)
    if value not in expected:
        raise CheckFailed(f"{path} is {value!r}, not {' or '.join(repr(name) for name in expected)}", reply)
    return value


def expect_usage(reply: Reply | None, document: Any, *, max_tokens: int) -> int:
    """Expect consistent token counts, and return the completion's.

    Raises:
        CheckFailed: the counts are missing, do not sum up, or exceed `max_tokens`.
    """
    prompt, completion, total = (
        take(reply, document, f"usage.{name}_tokens", int) for name in ("prompt", "completion", "total")
    )
    if prompt < 1 or prompt + completion != total:
        raise CheckFailed(f"the usage does not sum up: {prompt} + {completion} is not {total}", reply)
    if completion > max_tokens:
        raise CheckFailed(f"{completion} completion tokens, but max_tokens was {max_tokens}", reply)
    return completion


def expect_error(reply: Reply, status: int, *, code: str | None = None, param: str | None = None) -> None:
    """Expect an error in OpenAI's format.

    Raises:
        CheckFailed: the status, code or parameter differs, or a key is missing.
    """
    expect_status(reply, status)
    error = take(reply, json_of(reply), "error", dict)
    missing = [key for key in ERROR_KEYS if key not in error]
    if missing:
        raise CheckFailed(f"the error lacks {', '.join(missing)}; it must have all of {', '.join(ERROR_KEYS)}", reply)
    if not take(reply, error, "message", str):
        raise CheckFailed("the error's message is empty", reply)
    for name, expected in (("code", code), ("param", param)):
        if expected is not None and error[name] != expected:
            raise CheckFailed(f"the error's {name} is {error[name]!r}, not {expected!r}", reply)


def _hint(reply: Reply) -> str:
    if reply.status not in (401, 403):
        return ""
    if reply.is_json:
        return ": it does not take this key" if reply.was_keyed else ": it requires a key; give --api-key KEY"
    if not reply.was_identified:
        return ": the platform requires an identity; give --identity-token auto"
    return ": this identity may not call it (roles/run.invoker), or the token is for another --audience"
