"""The catalogue of a process, which merges models described in MODELS_CONFIG with models from a listing.

Lookups only use memory; `refresh` does a LIST and is run on a thread.
"""

import difflib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from service.catalogue.adapters import LOADED_ALIKE, ListedAdapters, ReadBase, adapter_entry
from service.catalogue.entry import ListedModel, ModelEntry, name_fault
from service.catalogue.names import NameIndex, hyphenated
from service.errors import AmbiguousModel, CheckpointError, InvalidParameter, SettingsError, UnknownModel

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
        has_slots: bool = False,
    ) -> None:
        """Create a catalogue; listed models are added by `refresh`.

        Args:
            described: models from MODELS_CONFIG; one without an address is looked up by name in the listing.
            uri: the folder of listed models.
            listing: lists the models, blocking; None for no listing.
            newest_step: returns the newest step of a run by its address, blocking; None if no runs are described.
            read_base: returns the model that a listed adapter was trained on, blocking; None if no adapters are served.
            selected: the only models to serve, which are preloaded; empty for all.
            has_slots: whether models have slots for adapters.
        """
        self._described = tuple(described)
        self._uri, self._listing, self._selected = uri, listing, tuple(selected)
        self._newest_step = newest_step
        self._has_slots = has_slots
        self._adapters = None if read_base is None else ListedAdapters(uri, read_base, has_slots=has_slots)
        self._lock = threading.Lock()  # of those that follow
        self._models: Sequence[ModelEntry] = () if listing is not None else self._described
        self._added: dict[str, ModelEntry] = {}  # by an operator
        self._index = NameIndex(()) if listing is not None else NameIndex(self._select(self._models))

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

    def adapter_of(self, name: str, path: str, *, in_place: bool = False) -> ModelEntry:
        """Return the entry of an adapter in the folder of the catalogue, for `add`. Blocks.

        Args:
            name: what requests will name.
            path: its address, or its path below that of the catalogue.
            in_place: as for `add`.

        Raises:
            InvalidParameter: the name is malformed or taken, or the path does not lead into the catalogue.
            CheckpointError: there is no adapter, or it is not served, or its base is not.
        """
        if self._adapters is None or not self._has_slots:
            reason = "needs MAX_LORAS, and a catalogue (CATALOGUE_URI or GCS_BUCKET) in which the adapter lies."
            raise InvalidParameter(f"'lora_path' {reason}", param="lora_path")
        if (fault := name_fault(name)) is not None:
            raise InvalidParameter(f"'lora_name' {fault}.", param="lora_name")
        self._check_is_free(name, in_place=in_place)
        inside = path.removeprefix(f"{self._uri}/").rstrip("/")
        # Defends against T34.
        if inside.startswith("/") or "://" in inside or name_fault(inside) is not None:
            message = f"'lora_path' must lead to a folder inside the catalogue ({self._uri}), without '..'."
            raise InvalidParameter(message, param="lora_path")
        bases = [entry for entry in self._index.entries if entry.base is None]
        return self._adapters.entry_of(name, f"{self._uri}/{inside}", bases)

    def add(self, entry: ModelEntry, *, in_place: bool = False) -> ModelEntry | None:
        """Add an adapter, until the process ends or `remove`.

        Args:
            entry: the adapter's.
            in_place: whether it takes the place of one that was added under its name, which is returned.

        Raises:
            InvalidParameter: its name is taken.
        """
        with self._lock:
            self._check_is_free(entry.name, in_place=in_place)
            older = self._added.get(entry.name)
            self._added[entry.name] = entry
            self._index = self._indexed()
        return older

    def remove(self, name: str) -> ModelEntry | None:
        """Remove an adapter that was added, and return its entry; None if none of this name was."""
        with self._lock:
            entry = self._added.pop(name, None)
            if entry is not None:
                self._index = self._indexed()
        return entry

    def _check_is_free(self, name: str, *, in_place: bool) -> None:
        replaced = self._added.get(name) if in_place else None
        others = (entry for entry in self._index.entries if entry is not replaced)
        if hyphenated(name) in {hyphenated(other) for entry in others for other in entry.names}:
            raise InvalidParameter(f"A model named {name!r} is served already.", param="lora_name")

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
        with_base = [entry for entry in self._described if entry.base is not None]
        plain = [entry for entry in self._described if entry.base is None]
        of_adapters = [entry for entry in plain if not entry.uri and hyphenated(entry.name) in names]
        described = [self._at_step(e, before.get(e.name)) for e in plain if e not in of_adapters]
        entries = merged(described, self._uri, [model for model in listed if not model.is_adapter])
        models = [_pinned(entry, before.get(entry.name)) for entry in entries]
        if self._adapters is not None:
            models += self._adapters.entries(adapters, models, of_adapters)
        models += [self._described_adapter(entry, models) for entry in with_base]
        with self._lock:
            self._models = models
            # A model that was uploaded meanwhile comes before an adapter that an operator added under its name.
            taken = {hyphenated(name) for entry in models for name in entry.names}
            served = {entry.name for entry in self._select(models)}
            added = self._added
            self._added = {n: e for n, e in added.items() if hyphenated(n) not in taken and e.base in served}
            self._index = self._indexed()
        if dropped := sorted(added.keys() - self._added.keys()):
            facts = {"adapters": dropped}
            logger.warning("adapters lost their base or their name to a change of the catalogue", extra=facts)

    def _indexed(self) -> NameIndex:
        return NameIndex([*self._select(self._models), *self._added.values()])

    def _described_adapter(self, entry: ModelEntry, models: Sequence[ModelEntry]) -> ModelEntry:
        """Return an entry that names its base."""
        assert entry.base is not None, "only those that name a base are described so"
        assert entry.adapter_uri is not None, "MODELS_CONFIG has a base only with an adapter"
        try:
            base = NameIndex(models).find(entry.base)
        except (UnknownModel, AmbiguousModel):
            message = f"the 'base' of {entry.name!r} is {entry.base!r}, which is no model here."
            raise SettingsError("MODELS_CONFIG", message) from None
        inherited = {name: getattr(base, name) for name in LOADED_ALIKE if getattr(entry, name) is None}
        return adapter_entry(replace(entry, **inherited), base, entry.adapter_uri, "", has_slots=self._has_slots)

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

    def _select(self, entries: Sequence[ModelEntry]) -> Sequence[ModelEntry]:
        """Return the models to serve, of all."""
        if not self._selected:
            return entries
        index = NameIndex(entries)
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
        # Without its base, an adapter has no slot to take.
        return [replace(entry, has_slot=entry.has_slot and entry.base in selected) for entry in selected.values()]


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
