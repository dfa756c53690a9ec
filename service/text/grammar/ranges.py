"""Ranges of numbers that the grammar library does not enforce."""

from collections.abc import Iterator
from typing import Any

LOWER = ("minimum", "exclusiveMinimum")
UPPER = ("maximum", "exclusiveMaximum")


def unenforced_bounds(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield each exclusive bound that the library would allow as a value: the path of its part, the part, its keyword.

    An integer that an exclusive bound leaves out is allowed all the same if the range ends before the next integer:
    0 is more than an `exclusiveMinimum` of 0 where the `maximum` is 0.5. The parts of `allOf` are one range.
    """
    parts = [("", schema)]
    parts += [(f"allOf[{i}].", part) for i, part in enumerate(schema.get("allOf", ())) if isinstance(part, dict)]
    lower = [part[keyword] for _, part in parts for keyword in LOWER if keyword in part]
    upper = [part[keyword] for _, part in parts for keyword in UPPER if keyword in part]
    for place, part in parts:
        least, most = part.get("exclusiveMinimum", 0.5), part.get("exclusiveMaximum", 0.5)
        if least % 1 == 0 and any(least < bound < least + 1 for bound in upper):
            yield place, part, "exclusiveMinimum"
        if most % 1 == 0 and any(most - 1 < bound < most for bound in lower):
            yield place, part, "exclusiveMaximum"
