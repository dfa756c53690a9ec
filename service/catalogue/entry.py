"""One model of a catalogue: its names, its address, and what is particular to it."""

from dataclasses import dataclass
from typing import Literal

from service.errors import SettingsError
from service.storage.location import HubLocation, parse_location

MAX_NAME_CHARS = 200

type Pin = Literal["step", "latest"]


@dataclass(frozen=True)
class ListedModel:
    """A folder that holds a checkpoint."""

    name: str  # relative to the catalogue; with a slash if it is of the second level
    version: str  # a digest of the names and versions of its files
    step: int | None  # of a Levanter run, the newest complete one


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """A model that requests may name. What is None follows from the settings, or from the checkpoint."""

    name: str  # the first of its names, and its `root` in /v1/models
    uri: str  # of the checkpoint; empty for the listed folder of this name
    aliases: tuple[str, ...] = ()
    version: str = ""  # a digest of its listed files; empty if they were not listed
    step: int | None = None  # of a Levanter run, the newest complete one
    pin: Pin = "step"  # whether a loaded Levanter run stays at its step, or moves on to a newer one
    tokenizer_uri: str | None = None
    dtype: str | None = None
    max_model_len: int | None = None
    is_preloaded: bool = False  # whether a start loads it before it answers
    keeps_loaded: bool = False  # whether no other model takes its place
    memory_share: float | None = None  # of the device memory for models, (0, 1]

    @property
    def names(self) -> tuple[str, ...]:
        """Every `model` that requests may name."""
        return (self.name, *self.aliases)


def name_fault(name: str) -> str | None:
    """Return why a text cannot name a model; None if it can."""
    if not name or len(name) > MAX_NAME_CHARS:
        return f"has {len(name)} characters, and not 1 to {MAX_NAME_CHARS}"
    if not name.isprintable() or name != name.strip() or "," in name or "\\" in name:
        return "has a comma, a backslash, a control character, or a space at an end"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "has an empty part, '.' or '..' between slashes"
    return None


def pinned_uri(uri: str, revision: str | None, variable: str) -> str:
    """Return the address of a checkpoint at a revision of the Hub.

    Raises:
        SettingsError: the address is malformed, or is of a place that has no revisions, or has another one.
    """
    location = parse_location(uri, variable)
    if revision is None:
        return uri
    if not isinstance(location, HubLocation):
        raise SettingsError(variable, f"'revision' belongs to an hf:// address, and {uri!r} is another.")
    if location.revision not in (None, revision):
        raise SettingsError(variable, f"{uri!r} contradicts 'revision: {revision}'; write one of the two.")
    return HubLocation(location.repo, revision).uri
