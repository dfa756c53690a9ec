"""The catalogue of a process, which merges models described in MODELS_CONFIG with models from a listing.

Lookups only use memory; `refresh` does a LIST and is run on a thread.
"""

import difflib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from service.catalogue.adapters import ListedAdapters, ReadBase
from service.catalogue.entry import ListedModel, ModelEntry
from service.catalogue.names import NameIndex, hyphenated
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
        read_base: ReadBase | None = None,
        selected: Sequence[str] = (),
    ) -> None:
        """Create a catalogue; listed models are added by `refresh`.

        Args:
            described: models from MODELS_CONFIG; one without an address is looked up by name in the listing.
            uri: the folder of listed models.
            listing: lists the models, blocking; None for no listing.
            newest_step: returns the newest step of a run by its address, blocking; None if no runs are described.
            read_base: returns the model that a listed adapter was trained on, blocking; None if no adapters are served.
            selected: the only models to serve, which are preloaded; empty for all.
        """
        self._described = tuple(described)
        self._uri, self._listing, self._selected = uri, listing, tuple(selected)
        self._newest_step = newest_step
        self._adapters = None if read_base is None else ListedAdapters(uri, read_base)
        self._index = NameIndex(()) if listing is not None else self._select(self._described)

    @property
    def entries(self) -> tuple[ModelEntry, ...]:
        """All models: described ones first, then the others by name."""
        return self._index.entries

    @property
    def is_listed(self) -> bool:
        """Whether `refresh` can change the models."""
        return self._listing is not None or any(entry.is_run and entry.pin == "latest" for entry in self._described)

    def find(self, name: str) -> ModelEntry:
        return self._index.find(name)

    def refresh(self) -> None:
        """List the models again, and the runs whose newest step is followed.

        Raises:
            AccessDenied, TransferFailed: the listing failed; the catalogue is unchanged.
            CheckpointError: a described run has never been listed successfully.
            SettingsError: a selected model does not exist.
        """
        before = {entry.name: entry for entry in self._index.entries}
        listed = () if self._listing is None else self._listing()
        adapters = [model for model in listed if model.is_adapter]
        names = {hyphenated(model.name) for model in adapters}
        of_adapters = [entry for entry in self._described if not entry.uri and hyphenated(entry.name) in names]
        described = [self._at_step(e, before.get(e.name)) for e in self._described if e not in of_adapters]
        entries = merged(described, self._uri, [model for model in listed if not model.is_adapter])
        models = [_pinned(entry, before.get(entry.name)) for entry in entries]
        if self._adapters is not None:
            models += self._adapters.entries(adapters, models, of_adapters)
        self._index = self._select(models)

    def _at_step(self, entry: ModelEntry, before: ModelEntry | None) -> ModelEntry:
        """Return a described run at its newest step, or at the previous one if it cannot be listed."""
        if not entry.is_run or self._newest_step is None:
            return entry
        if before is None or before.step is None or entry.pin == "latest":
            try:
                newest = self._newest_step(entry.uri)
            except CheckpointError as error:
                if before is None or before.step is None:
                    raise
                facts = {"model": entry.name, "reason": str(error)}
                logger.warning("the run of a model cannot be listed; keeping its step", extra=facts)
            else:
                return replace(entry, step=newest.step, version=newest.version)
        return replace(entry, step=before.step, version=before.version)

    def _select(self, entries: Sequence[ModelEntry]) -> NameIndex:
        index = NameIndex(entries)
        if not self._selected:
            return index
        selected: dict[str, ModelEntry] = {}
        for name in self._selected:
            try:
                entry = index.find(name)
            except UnknownModel:
                close = difflib.get_close_matches(name, [n for e in entries for n in e.names], n=1)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                raise SettingsError("MODELS", f"{name!r} is not in the catalogue.{hint}") from None
            names = entry.names if name in entry.names else (*entry.names, name)
            selected[entry.name] = replace(entry, aliases=names[1:], is_preloaded=True)
        return NameIndex(selected.values())


def merged(described: Sequence[ModelEntry], uri: str, listed: Sequence[ListedModel]) -> list[ModelEntry]:
    """Merge described models, with addresses from the listing if they have none, and other listed models.

    A described model with neither an address nor a listed folder is dropped.
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
    """Return the entry of a Levanter run with the address of its step, or of the previous step if pinned to it."""
    if entry.step is None:
        return entry
    if entry.pin == "step" and before is not None and before.step is not None:
        return replace(entry, uri=before.uri, step=before.step, version=before.version)
    return replace(entry, uri=f"{entry.uri.rstrip('/')}/step-{entry.step}")
