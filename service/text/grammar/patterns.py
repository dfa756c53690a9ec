"""Patterns of JSON Schema, which are ECMAScript's, in the dialect of the grammar library, which is Rust's.

Where the two read one pattern differently, it is rewritten or refused, so that every string that the grammar allows
matches as the schema's author meant it.
Source: https://json-schema.org/draft/2020-12/json-schema-core#section-6.4, https://docs.rs/regex/latest/regex/#syntax
"""

MAX_PATTERN_CHARS = 4096
# Letters and digits that mean the same after a backslash in both dialects, or are rewritten here.
_ESCAPES = frozenset("dDwWsSnrtfvxupP")
_ANY_CHARACTER = "[^\\n\\r\\u2028\\u2029]"
_SPACES = " \\t\\n\\r\\f\\v"  # those that every dialect counts
_NEVER_SPACES = "\\s\\x1c-\\x1f\\ufeff"  # those that any dialect counts


def rewritten(pattern: str) -> str:
    """Return a pattern that Rust reads as ECMAScript reads this one, or more narrowly.

    Raises:
        ValueError: the pattern has a construct that is not supported; the message names it.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(f"it is longer than {MAX_PATTERN_CHARS} characters")
    parts: list[str] = []
    position = 0
    while position < len(pattern):
        if pattern[position] == "[":
            part, position = _class(pattern, position)
        elif pattern.startswith("(?", position):
            part, position = _group(pattern, position)
        elif pattern[position] == "\\":
            part, position = _escape(pattern, position), position + 2
            part = {"\\s": f"[{_SPACES}]", "\\S": f"[^{_NEVER_SPACES}]"}.get(part, part)
        else:
            part, position = pattern[position], position + 1
            part = _ANY_CHARACTER if part == "." else part
        parts.append(part)
    return "".join(parts)


def _escape(pattern: str, position: int) -> str:
    """Return the backslash at a position and the character after it."""
    escape = pattern[position : position + 2]
    if escape[1:].isalnum() and escape[1] not in _ESCAPES:
        raise ValueError(f"'{escape}' is not supported")
    if len(escape) == 1:
        raise ValueError("it ends with a backslash")
    return escape


def _group(pattern: str, position: int) -> tuple[str, int]:
    """Return the opening of a group without capture, and the position after it."""
    if not pattern.startswith("(?:", position):
        raise ValueError(f"'{pattern[position : position + 3]}' is not supported: groups are (…) or (?:…)")
    return "(?:", position + 3


def _class(pattern: str, start: int) -> tuple[str, int]:
    """Return a class of characters, and the position after it."""
    is_negated = pattern.startswith("[^", start)
    position = start + 1 + is_negated
    parts = [pattern[start:position]]
    while position < len(pattern) and pattern[position] != "]":
        if pattern[position] == "\\":
            part, position = _escape(pattern, position), position + 2
            if part == "\\s":
                part = _NEVER_SPACES if is_negated else _SPACES
        elif pattern[position] == "[" or pattern[position : position + 2] in ("&&", "--", "~~"):
            raise ValueError("'[', '&&', '--' and '~~' inside a class need a backslash")
        else:
            part, position = pattern[position], position + 1
        parts.append(part)
    if position >= len(pattern) or len(parts) == 1:
        raise ValueError("a class of characters is empty or has no end")
    return "".join(parts) + "]", position + 1
