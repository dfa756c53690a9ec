"""Names of requests to models: exactly, or with hyphens where a request has slashes, as buckets write `org/name`.

An address is never built from a request: a name is looked up among those that are there.
"""

from collections.abc import Iterable

from service.catalogue.entry import ModelEntry
from service.errors import AmbiguousModel, UnknownModel


def hyphenated(name: str) -> str:
    """Return a name as a folder of a bucket has it: a slash becomes a hyphen."""
    return name.replace("/", "-")


class NameIndex:
    """The entries of a catalogue, found by name; it does not change."""

    def __init__(self, entries: Iterable[ModelEntry]) -> None:
        """Index entries of which no two share a name."""
        self.entries = tuple(entries)
        self._exact = {name: entry for entry in self.entries for name in entry.names}
        self._hyphenated: dict[str, list[ModelEntry]] = {}
        for name, entry in self._exact.items():
            found = self._hyphenated.setdefault(hyphenated(name), [])
            if entry not in found:
                found.append(entry)

    def find(self, name: str) -> ModelEntry:
        """Return the model that a request names.

        A name that is not there as it stands is compared with the hyphenated ones. Only one of the two names may have
        slashes there: `a-b/c` does not find `a/b-c`.

        Raises:
            UnknownModel: there is no such model.
            AmbiguousModel: there are several of this hyphenated name.
        """
        if (entry := self._exact.get(name)) is not None:
            return entry
        alike = self._hyphenated.get(hyphenated(name), [])
        if "/" in name:
            alike = [entry for entry in alike if hyphenated(name) in entry.names]
        if len(alike) > 1:
            raise AmbiguousModel(name, [entry.name for entry in alike])
        if not alike:
            raise UnknownModel(name, [entry.name for entry in self.entries])
        return alike[0]
