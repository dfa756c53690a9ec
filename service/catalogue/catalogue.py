"""The catalogue of a process: what is described and what is listed, as one set of names that is refreshed.

Reading is a look-up in memory; only `refresh` reads the listing, and a caller runs it on a thread.
"""

import difflib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from service.catalogue.entry import ListedModel, ModelEntry
from service.catalogue.names import NameIndex
from service.errors import CheckpointError, SettingsError, UnknownModel

logger = logging.getLogger(__name__)

type Listing = Callable[[], Sequence[ListedModel]]
type NewestStep = Callable[[str], ListedModel]


class Catalogue:
    """The models that requests may name."""

    def __init__(
        self,
        described: Sequence[ModelEntry],
        *,
        uri: str = "",
        listing: Listing | None = None,
        newest_step: NewestStep | None = None,
        wanted: Sequence[str] = (),
    ) -> None:
        """Put together what is described and, by `refresh`, what is listed.

        Args:
            described: by the operator; without an address, those that are listed under their name.
            uri: the folder whose models are listed.
            listing: lists them, and blocks; None if nothing is listed.
            newest_step: returns the newest step of a run by its address, and blocks; None if no run is described.
            wanted: the names of the only models to serve, which are loaded before the start ends; empty for all.
        """
        self._described = tuple(described)
        self._uri, self._listing, self._wanted = uri, listing, tuple(wanted)
        self._newest_step = newest_step
        self._index = NameIndex(()) if listing is not None else self._chosen(self._described)

    @property
    def entries(self) -> tuple[ModelEntry, ...]:
        """All models: the described ones first, then the others by name."""
        return self._index.entries

    @property
    def is_listed(self) -> bool:
        """Whether `refresh` can find other models than before."""
        return self._listing is not None or any(entry.is_run and entry.pin == "latest" for entry in self._described)

    def find(self, name: str) -> ModelEntry:
        """Return the model that a request names; see `NameIndex.find`."""
        return self._index.find(name)

    def refresh(self) -> None:
        """List the models again, and the runs that are described and followed.

        Raises:
            AccessDenied, TransferFailed: the listing did not come; the catalogue stays as it was.
            CheckpointError: a run that is described was never found.
            SettingsError: a wanted model is not there.
        """
        before = {entry.name: entry for entry in self._index.entries}
        described = [self._at_step(entry, before.get(entry.name)) for entry in self._described]
        entries = merged(described, self._uri, () if self._listing is None else self._listing())
        self._index = self._chosen([_pinned(entry, before.get(entry.name)) for entry in entries])

    def _at_step(self, entry: ModelEntry, before: ModelEntry | None) -> ModelEntry:
        """Return a run that is described at its newest step; where that cannot be listed, at the one before."""
        if not entry.is_run or self._newest_step is None:
            return entry
        if before is None or before.step is None or entry.pin == "latest":
            try:
                found = self._newest_step(entry.uri)
            except CheckpointError as error:
                if before is None or before.step is None:
                    raise
                facts = {"model": entry.name, "reason": str(error)}
                logger.warning("the run of a model cannot be listed; it stays at its step", extra=facts)
            else:
                return replace(entry, step=found.step, version=found.version)
        return replace(entry, step=before.step, version=before.version)

    def _chosen(self, entries: Sequence[ModelEntry]) -> NameIndex:
        index = NameIndex(entries)
        if not self._wanted:
            return index
        chosen: dict[str, ModelEntry] = {}
        for name in self._wanted:
            try:
                entry = index.find(name)
            except UnknownModel:
                close = difflib.get_close_matches(name, [n for e in entries for n in e.names], n=1)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                raise SettingsError("MODELS", f"{name!r} is not in the catalogue.{hint}") from None
            names = entry.names if name in entry.names else (*entry.names, name)
            chosen[entry.name] = replace(entry, aliases=names[1:], is_preloaded=True)
        return NameIndex(chosen.values())


def merged(described: Sequence[ModelEntry], uri: str, listed: Sequence[ListedModel]) -> list[ModelEntry]:
    """Return the described models, with the addresses of those that are listed, and the other listed ones.

    A described model that has neither an address nor a folder in the listing is left out.
    """
    folders = NameIndex(
        ModelEntry(name=model.name, uri=f"{uri}/{model.name}", version=model.version, step=model.step)
        for model in listed
    )
    entries: list[ModelEntry] = []
    taken: set[str] = set()
    for entry in described:
        if not entry.uri:
            try:
                folder = folders.find(entry.name)
            except UnknownModel:
                logger.warning("a model of MODELS_CONFIG is not in the listing", extra={"model": entry.name})
                continue
            taken.add(folder.name)
            entries.append(replace(entry, uri=folder.uri, version=folder.version, step=folder.step))
        else:
            entries.append(entry)
    names = {name for entry in entries for name in entry.names}
    return entries + [folder for folder in folders.entries if folder.name not in taken | names]


def _pinned(entry: ModelEntry, before: ModelEntry | None) -> ModelEntry:
    """Return the entry of a Levanter run with the address of its step, an earlier one if the run is pinned to it."""
    if entry.step is None:
        return entry
    if entry.pin == "step" and before is not None and before.step is not None:
        return replace(entry, uri=before.uri, step=before.step, version=before.version)
    return replace(entry, uri=f"{entry.uri.rstrip('/')}/step-{entry.step}")
