"""An entry of the catalogue: a model's names, address and individual settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from service.errors import SettingsError
from service.settings import Settings
from service.storage.location import HubLocation, parse_location
from service.text.generation_defaults import NO_DEFAULTS, GenerationDefaults

MAX_NAME_CHARS = 200

type Pin = Literal["step", "latest"]


@dataclass(frozen=True)
class ListedModel:
    """A folder with a checkpoint."""

    name: str  # relative to the catalogue; contains a slash if it is on the second level
    version: str  # digest of the names and versions of the files
    step: int | None  # the newest complete step of a Levanter run
    is_adapter: bool = False  # whether it is an adapter, and not a checkpoint


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """A model that requests can name. Values of None are taken from the settings or the checkpoint."""

    name: str  # the primary name, and the `root` in /v1/models
    uri: str  # of the checkpoint; empty for the listed folder of this name
    aliases: tuple[str, ...] = ()
    version: str = ""  # digest of the listed files; empty if they were not listed
    step: int | None = None  # the newest complete step of a Levanter run
    pin: Pin = "step"  # whether a loaded Levanter run stays at its step or follows the latest one
    is_run: bool = False  # whether `uri` is a described Levanter run, so that a refresh looks for its step
    generations: Mapping[str, int] = field(default_factory=dict)  # pinned generation by file name
    tokenizer_uri: str | None = None
    chat_template: str | None = None  # a file, or the template itself
    adapter_uri: str | None = None  # of an adapter that is merged into the model
    base: str | None = None  # the name of the model that the adapter updates, if that is served too
    has_slot: bool = False  # whether the adapter takes a slot of its base, and is not merged into a model of its own
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_dtype: str | None = None
    max_model_len: int | None = None
    defaults: GenerationDefaults = NO_DEFAULTS  # for requests that omit options
    is_preloaded: bool = False  # whether it is loaded during the start
    keeps_loaded: bool = False  # whether it is never evicted
    memory_share: float | None = None  # of the device memory, (0, 1]

    @property
    def names(self) -> tuple[str, ...]:
        """All names that requests can use."""
        return (self.name, *self.aliases)

    @property
    def address(self) -> str:
        """What is loaded, which differs between a model and the same model with an adapter."""
        return self.uri if self.adapter_uri is None else f"{self.uri} {self.adapter_uri}"

    def share(self, process: Settings) -> float:
        """Return the model's share of the device memory, (0, 1], which determines the size of its caches."""
        return 1 / process.max_cached_models if self.memory_share is None else self.memory_share

    def settings(self, process: Settings) -> Settings:
        """Return the settings for loading the model: its own on top of the process's."""
        own = {
            "model_uri": self.uri,
            "model_name": ",".join(self.names),
            "tokenizer_uri": self.tokenizer_uri,
            "chat_template": self.chat_template,
            "tool_call_parser": self.tool_call_parser,
            "reasoning_parser": self.reasoning_parser,
            "adapter_uri": self.adapter_uri,
            "dtype": self.dtype,
            "quantization": self.quantization,
            "kv_dtype": self.kv_dtype,
            "max_model_len": self.max_model_len,
        }
        overrides = {name: value for name, value in own.items() if value is not None}
        no_catalogue = dict.fromkeys(("gcs_bucket", "catalogue_uri", "models_config", "models"))
        return process.model_copy(update={**no_catalogue, "gcs_model_prefix": "", **overrides})


def name_fault(name: str) -> str | None:
    """Return why a text cannot be a model's name, or None if it can."""
    if not name or len(name) > MAX_NAME_CHARS:
        return f"has {len(name)} characters, not 1 to {MAX_NAME_CHARS}"
    if not name.isprintable() or name != name.strip() or "," in name or "\\" in name:
        return "has a comma, a backslash, a control character, or leading or trailing whitespace"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "has an empty part, '.' or '..' between slashes"
    return None


def pinned_uri(uri: str, revision: str | None, variable: str) -> str:
    """Return the address of a checkpoint at a revision of the Hub.

    Raises:
        SettingsError: the address is malformed, is not on the Hub, or has a different revision.
    """
    location = parse_location(uri, variable)
    if revision is None:
        return uri
    if not isinstance(location, HubLocation):
        raise SettingsError(variable, f"'revision' needs an hf:// address, but the address is {uri!r}.")
    if location.revision not in (None, revision):
        raise SettingsError(variable, f"{uri!r} contradicts 'revision: {revision}'; write one of the two.")
    return replace(location, revision=revision).uri
