"""The fields of one request that were accepted and not honoured: its answer, its log line and a metric name them."""

from collections.abc import Iterable, Sequence, Set
from itertools import accumulate

from service.api.schema.ignored import IgnoredField
from service.api.schema.wire import WireObject
from service.errors import UnknownParameter, UnsupportedParameter
from service.observability.metrics import Metrics

MAX_NAMED = 32  # further fields are counted
MAX_CHARS = 2048  # of all names: proxies such as nginx take 4 KiB of headers
MAX_NAME_CHARS = 200  # of a part of a tool's schema, which may lie deep in it
# The label of fields that no interface has, since clients choose their names.
UNKNOWN = "unknown"
# Fields whose parts clients name.
OPEN_FIELDS = frozenset(
    {"chat_template_kwargs", "input_schema", "parameters", "schema", "json", "metadata", "logit_bias"}
)
MAX_LABELS, MAX_LABEL_PARTS = 32, 4  # of one request, of a label


class IgnoredFields:
    """Collects the fields of one request while it is checked, rendered and admitted."""

    def __init__(self) -> None:
        self.is_strict = False  # STRICT_FIELDS: refuses each field instead of ignoring it
        self._fields: dict[str, IgnoredField] = {}

    def add(self, fields: Iterable[IgnoredField]) -> None:
        """Ignore fields.

        Raises:
            UnsupportedParameter, UnknownParameter: the operator has asked for refusals instead.
        """
        for field in fields:
            if self.is_strict:
                raise UnsupportedParameter(field.path) if field.is_known else UnknownParameter(field.path)
            self._fields.setdefault(field.name, field)

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
        known = _known_names(WireObject) if any(field.is_known for field in self._fields.values()) else frozenset()
        labels = {_label(field.name, known) if field.is_known else UNKNOWN for field in self._fields.values()}
        for label in sorted(labels)[:MAX_LABELS]:
            metrics.ignored_fields.labels(label).inc()


def _label(name: str, known: Set[str]) -> str:
    """Return a field as far as an interface has it: clients choose the names in schemas and other mappings."""
    parts = name.split(".")
    # Defends against T41.
    parts = _own_parts(parts, known)
    return ".".join(parts) or UNKNOWN


def _own_parts(parts: Sequence[str], known: Set[str]) -> list[str]:
    own: list[str] = []
    for part in parts[:MAX_LABEL_PARTS]:
        if part.replace("[]", "") not in known:
            break
        own.append(part)
        if part in OPEN_FIELDS:
            break
    return own


def _known_names(kind: type[WireObject]) -> frozenset[str]:
    """Return the names that the fields of a kind of objects, and of those derived from it, have in requests."""
    own = {field.alias or name for name, field in kind.model_fields.items()}
    return frozenset(own | kind.hints.keys() | kind.refused.keys()).union(*map(_known_names, kind.__subclasses__()))


def _printable(name: str) -> str:
    """Return a client's name as a header can have it: not empty, and without the commas that separate names."""
    return "".join(c if "!" <= c <= "~" and c != "," else "?" for c in name[:MAX_NAME_CHARS]) or '""'
