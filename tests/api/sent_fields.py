"""Which fields the bodies that a test sends have, by the model of the body."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from service.api import files
from service.api.http import form, query
from service.api.schema import wire


@contextmanager
def recorded() -> Iterator[dict[str, set[str]]]:
    """Record the fields of every body that is read meanwhile."""
    sent: dict[str, set[str]] = defaultdict(set)

    def checked(kind, document, *more):
        sent[kind.__name__].update(document)
        if kind.__name__ in ("AudioRequest", "FileFields"):
            sent[kind.__name__].add("file")
        return check(kind, document, *more)

    check = wire.checked
    with (
        patch.object(wire, "checked", checked),
        patch.object(form, "checked", checked),
        patch.object(query, "checked", checked),
        patch.object(files, "checked", checked),
    ):
        yield sent
