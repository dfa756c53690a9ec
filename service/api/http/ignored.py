"""The fields of one request that were accepted and not honoured: its answer, its log line and a metric name them."""

import re
from collections.abc import Callable, Iterable
from itertools import accumulate

from service.api.schema.ignored import IgnoredField
from service.errors import UnknownParameter, UnsupportedParameter
from service.observability.metrics import Metrics

MAX_NAMED = 32  # further fields are counted
MAX_CHARS = 2048  # of all names: proxies such as nginx take 4 KiB of headers
MAX_NAME_CHARS = 200  # of a part of a tool's schema, which may lie deep in it
# The label of fields that no interface has, since clients choose their names.
UNKNOWN = "unknown"


class IgnoredFields:
    """Collects the fields of one request while it is checked, rendered and admitted."""

    def __init__(self) -> None:
        self.is_strict = False  # STRICT_FIELDS: refuses each field instead of ignoring it
        self._fields: dict[str, IgnoredField] = {}
        # From the names of the chat that a request is turned into to those of the request itself.
        self.in_terms_of_request: Callable[[str], str] = str

    def add(self, fields: Iterable[IgnoredField]) -> None:
        """Ignore fields.

        Raises:
            UnsupportedParameter, UnknownParameter: the operator has asked for refusals instead.
        """
        for field in fields:
            stated = field._replace(path=self.in_terms_of_request(field.path))
            if self.is_strict:
                raise UnsupportedParameter(stated.path) if stated.is_known else UnknownParameter(stated.path)
            self._fields.setdefault(stated.name, stated)

    def __str__(self) -> str:
        """Return the fields' names as a header has them."""
        names = [_printable(name) for name in self._fields]
        ends = accumulate(len(name) + 2 for name in names[:MAX_NAMED])
        num_named = sum(end <= MAX_CHARS for end in ends)
        more = [f"and {len(names) - num_named} more"] if len(names) > num_named else []
        return ", ".join([*names[:num_named], *more])

    def __bool__(self) -> bool:
        return bool(self._fields)

    def count(self, metrics: Metrics) -> None:
        """Add the fields to the metric, once for the request."""
        for name in {_field_of(field.name) if field.is_known else UNKNOWN for field in self._fields.values()}:
            metrics.ignored_fields.labels(name).inc()


def _field_of(name: str) -> str:
    """Return the field of an interface that holds a part of a tool's schema, whose names clients choose."""
    return re.split(r"(?<=\.parameters)\.|(?<=\.input_schema)\.", name, maxsplit=1)[0]


def _printable(name: str) -> str:
    """Return a client's name as a header can have it: not empty, and without the commas that separate names."""
    return "".join(c if "!" <= c <= "~" and c != "," else "?" for c in name[:MAX_NAME_CHARS]) or '""'
