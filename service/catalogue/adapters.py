"""Adapters in a listing: each is a model of its own, loaded as its base model with the adapter merged into it."""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from service.catalogue.entry import ListedModel, ModelEntry
from service.catalogue.names import NameIndex, hyphenated
from service.checkpoint.adapters.peft import CONFIG
from service.errors import AmbiguousModel, CheckpointError, RefusedAdapter, UnknownModel

logger = logging.getLogger(__name__)

NUM_READERS = 16
# Options by which models in memory differ.
LOADED_ALIKE = ("tokenizer_uri", "dtype", "quantization", "kv_dtype", "max_model_len", "memory_share")

type ReadBase = Callable[[str], str | None]  # from an adapter's address to the model that it was trained on


class ListedAdapters:
    """Finds the base models of listed adapters; the configuration of each version is read once."""

    def __init__(self, uri: str, read_base: ReadBase, *, has_slots: bool = False) -> None:
        """Create the index.

        Args:
            uri: the folder that was listed.
            read_base: reads an adapter's configuration, blocking; raises CheckpointError if it is not served.
            has_slots: whether base models have slots for adapters.
        """
        self._uri, self._read_base, self._has_slots = uri, read_base, has_slots
        self._bases: dict[tuple[str, str], str | None] = {}  # by name and version; None for one that is refused

    def entries(
        self, adapters: Sequence[ListedModel], models: Sequence[ModelEntry], described: Sequence[ModelEntry]
    ) -> list[ModelEntry]:
        """Return the entries of adapters whose base model is among `models`; the log names the others.

        Args:
            adapters: the listed folders of adapters.
            models: the entries of all models.
            described: entries without an address, whose names and options those of adapters take.
        """
        self._read_new(adapters)
        own = {hyphenated(entry.name): entry for entry in described}
        taken = {hyphenated(name) for entry in models for name in entry.names}
        index, found = NameIndex(models), []
        for adapter in adapters:
            base_name = self._bases[(adapter.name, adapter.version)]
            if base_name is None:
                continue
            if hyphenated(adapter.name) in taken:
                logger.warning("an adapter has the name of a model", extra={"adapter": adapter.name})
                continue
            if (base := _base_among(index, base_name)) is None:
                facts = {"adapter": adapter.name, "base": base_name}
                logger.warning("the base model of an adapter is not served", extra=facts)
                continue
            uri = f"{self._uri}/{adapter.name}" + ("" if adapter.step is None else f"/step-{adapter.step}")
            options = own.get(hyphenated(adapter.name), _options_of(base, adapter.name))
            found.append(adapter_entry(options, base, uri, adapter.version, has_slots=self._has_slots))
        return found

    def entry_of(self, name: str, uri: str, models: Sequence[ModelEntry]) -> ModelEntry:
        """Return the entry of one adapter, which takes a slot of its base among `models`. Blocks.

        Raises:
            CheckpointError: there is no adapter, or it is not served, or its base is not.
        """
        base_name = self._read_base(uri)
        base = None if base_name is None else _base_among(NameIndex(models), base_name)
        if base is None:
            reason = f"is {base_name!r}, which is no model of this catalogue"
            raise RefusedAdapter(uri, CONFIG, "base_model_name_or_path", reason)
        # A version of its own, so that files that were replaced are read again.
        version, has_slots = str(time.time_ns()), self._has_slots
        return adapter_entry(_options_of(base, name), base, uri, version, has_slots=has_slots)

    def _read_new(self, adapters: Sequence[ListedModel]) -> None:
        keys = {(adapter.name, adapter.version): f"{self._uri}/{adapter.name}" for adapter in adapters}
        self._bases = {key: base for key, base in self._bases.items() if key in keys}
        new = {key: uri for key, uri in keys.items() if key not in self._bases}
        with ThreadPoolExecutor(NUM_READERS, thread_name_prefix="adapters") as pool:
            self._bases |= dict(zip(new, pool.map(self._base_of, new.values()), strict=True))

    def _base_of(self, uri: str) -> str | None:
        """Return the name of an adapter's base, empty if it names none; None if the adapter is refused."""
        try:
            return self._read_base(uri) or ""
        except CheckpointError as error:
            logger.warning("skipping an adapter of the catalogue", extra={"reason": str(error)})
            return None


def adapter_entry(options: ModelEntry, base: ModelEntry, uri: str, version: str, *, has_slots: bool) -> ModelEntry:
    """Return the entry of an adapter.

    Args:
        options: its names, and the options of its base or its own.
        base: the model that it updates.
        uri: its address.
        version: of its files.
        has_slots: whether its base has slots for adapters.
    """
    entry = replace(
        options,
        uri=base.uri,
        step=base.step,
        generations=base.generations,
        tokenizer_uri=options.tokenizer_uri or base.tokenizer_uri,
        adapter_uri=uri,
        base=base.name,
        version=f"{base.version} {version}",
    )
    # An adapter that is to be loaded in another way than its base is merged into a model of its own.
    if not has_slots or any(getattr(entry, name) != getattr(base, name) for name in LOADED_ALIKE):
        return entry
    return replace(entry, has_slot=True, is_preloaded=False, keeps_loaded=False)


def _options_of(base: ModelEntry, name: str) -> ModelEntry:
    """Return the options of a base for its adapter, but for what concerns its stay in memory."""
    return replace(base, name=name, aliases=(), is_preloaded=False, keeps_loaded=False)


def _base_among(models: NameIndex, base: str) -> ModelEntry | None:
    """Return the model of this address, of this name, or of the last part of the name."""
    address = base.rstrip("/")
    for entry in models.entries:
        if entry.uri.rstrip("/") in (address, f"hf://{address}"):
            return entry
    for name in (address, address.rpartition("/")[2]):
        try:
            return models.find(name)
        except (UnknownModel, AmbiguousModel):
            continue
    return None
