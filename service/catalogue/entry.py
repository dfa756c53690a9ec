"""One model of a catalogue: its names, its address, and what is particular to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from service.errors import SettingsError
from service.settings import Settings
from service.storage.location import HubLocation, parse_location
from service.text.generation_defaults import NO_DEFAULTS, GenerationDefaults

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
    is_run: bool = False  # whether `uri` is a Levanter run that is described, so that a refresh looks for its step
    generations: Mapping[str, int] = field(default_factory=dict)  # by file of a bucket: the one to serve
    tokenizer_uri: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_dtype: str | None = None
    max_model_len: int | None = None
    defaults: GenerationDefaults = NO_DEFAULTS  # for requests that leave options out
    is_preloaded: bool = False  # whether a start loads it before it answers
    keeps_loaded: bool = False  # whether no other model takes its place
    memory_share: float | None = None  # of the device memory for models, (0, 1]

    @property
    def names(self) -> tuple[str, ...]:
        """Every `model` that requests may name."""
        return (self.name, *self.aliases)

    def share(self, process: Settings) -> float:
        """Return the model's share of the device memory for models, (0, 1]; its caches follow from it."""
        return 1 / process.max_cached_models if self.memory_share is None else self.memory_share

    def settings(self, process: Settings) -> Settings:
        """Return the settings with which the model is loaded: its own, and the process's."""
        own = {
            "model_uri": self.uri,
            "model_name": ",".join(self.names),
            "tokenizer_uri": self.tokenizer_uri,
            "dtype": self.dtype,
            "quantization": self.quantization,
            "kv_dtype": self.kv_dtype,
            "max_model_len": self.max_model_len,
        }
        given = {name: value for name, value in own.items() if value is not None}
        no_catalogue = dict.fromkeys(("gcs_bucket", "catalogue_uri", "models_config", "models"))
        return process.model_copy(update={**no_catalogue, "gcs_model_prefix": "", **given})


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
