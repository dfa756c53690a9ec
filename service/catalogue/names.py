"""Lookup of models by name, exactly or with hyphens in place of slashes, as in buckets.

Addresses are never built from requests: names are looked up among existing ones.
"""

from collections.abc import Iterable

from service.catalogue.entry import ModelEntry
from service.errors import AmbiguousModel, UnknownModel


def hyphenated(name: str) -> str:
    """Return the folder name in a bucket: slashes become hyphens."""
    return name.replace("/", "-")


class NameIndex:
    """An immutable index of a catalogue's entries by name."""

    def __init__(self, entries: Iterable[ModelEntry]) -> None:
        """Index entries with distinct names."""
        self.entries = tuple(entries)
        self._exact = {name: entry for entry in self.entries for name in entry.names}
        self._hyphenated: dict[str, list[ModelEntry]] = {}
        for name, entry in self._exact.items():
            same_folder = self._hyphenated.setdefault(hyphenated(name), [])
            if entry not in same_folder:
                same_folder.append(entry)

    def find(self, name: str) -> ModelEntry:
        """Return the model with a name.

        Without an exact match, names are compared with hyphens in place of slashes. Only one of the two names may have
        slashes: `a-b/c` does not match `a/b-c`.

        Raises:
            UnknownModel: there is no such model.
            AmbiguousModel: several models have this hyphenated name.
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
