"""JSON pointers, with which a schema refers to its parts.

Source: RFC 6901, https://json-schema.org/draft/2020-12/json-schema-core#section-8.2.3
"""

from typing import Any
from urllib.parse import unquote


def target(reference: str, root: Any) -> Any:
    """Return the part of a document that a pointer such as `#/$defs/name` leads to.

    Raises:
        LookupError: it leads nowhere, or out of the document.
    """
    start, *steps = reference.split("/")
    if start != "#":
        raise LookupError(reference)
    found = root
    for step in steps:
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isascii() and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            raise LookupError(reference)
    return found
