"""Every knob of the service, as twelve-factor settings.

A setting is a `serve` flag (`--max-model-len`), an environment variable (its name in capitals), a line of `.env`, and
a key of the YAML file given with `--config`; where several of them speak, the first in this order wins. `.env.example`
and the table in README.md are kept equal to this file by a test.
"""

import difflib
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from service.errors import SettingsError

# A variable this close to one of ours is taken for a misspelling: MODEL_URL, MAX_MODEL_LENGTH, API_KEYS.
MISSPELLING_RATIO = 0.85
COMPILER_VARIABLES = frozenset({"XLA_FLAGS", "LIBTPU_INIT_ARGS", "TF_XLA_FLAGS", "NVIDIA_TF32_OVERRIDE"})
# These choose a device, or what is logged; the device is known by itself.
HARMLESS_JAX_VARIABLES = frozenset({"JAX_PLATFORMS", "JAX_LOG_COMPILES", "JAX_LOGGING_LEVEL"})


class Settings(BaseModel):
    """The effective settings of one process; read once, in `cli`. `setting_meanings` reads the text of each field."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model_uri: str | None = None
    """The checkpoint to serve: `gs://bucket/prefix`, `hf://org/name[@revision]` or a path. Unset: the demo model."""

    model_name: str | None = None
    """The name that clients send as `model`. Unset: the last part of the checkpoint's address."""

    model_config_uri: str | None = None
    """Where a Levanter checkpoint's model configuration lies (HF `config.json` or Levanter YAML), if not beside it."""

    tokenizer_uri: str | None = None
    """Where the tokenizer lies, if not beside the weights: `gs://…`, `hf://…` or a path."""

    gcs_bucket: str | None = None
    """A bucket with a catalogue of models; with MODEL_NAME it stands for MODEL_URI (a slash in a name is a hyphen)."""

    gcs_model_prefix: str = ""
    """The folder of the catalogue inside GCS_BUCKET."""

    storage_emulator_host: str | None = None
    """The address of a GCS emulator, for tests: `http://127.0.0.1:4443`. Unset: Google Cloud Storage."""

    local_model_cache: Path = Path("~/.cache/levserve")
    """The folder that keeps pulled checkpoints. On Cloud Run a plain folder is memory: mount a disk there."""

    max_cached_models: int = Field(default=2, ge=1)
    """How many pulled checkpoints LOCAL_MODEL_CACHE keeps; the least recently used go first, never one in use."""

    model_stream: bool = False
    """Send weights straight to the device and keep no files. For Cloud Run, whose file system is memory."""

    stream_staging_bytes: int = Field(default=512 * 1024 * 1024, ge=64 * 1024 * 1024)
    """The host's memory that loading may take beside the weights; a single larger weight goes through alone."""

    pull_timeout: float = Field(default=1500, gt=0)
    """Seconds that pulling a checkpoint may take in all; below Cloud Run's GPU start limit of 1800 s."""

    bundle_uri: str | None = None
    """Where bundles, the compiled executables, are shared: `gs://…` or a path; `sibling` is `.levserve-bundles` beside
    the checkpoint. They are native code: only who may change the image should write there. Unset: LOCAL_MODEL_CACHE."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """The type of weights and activations. `auto`: float32 on a CPU, else what the checkpoint was saved in."""

    max_model_len: int | None = Field(default=None, ge=16)
    """Tokens of context, prompt and completion together. Unset: the model's own, as far as memory reaches."""

    max_num_seqs: int = Field(default=16, ge=1, le=1024)
    """Slots: how many sequences run at once."""

    max_prefill_tokens: int = Field(default=512, ge=16, le=16384)
    """Prompt tokens of one prefill step; a longer prompt goes in chunks between decode steps."""

    page_size: int = Field(default=16, ge=1, le=1024)
    """Token positions of one KV page."""

    tensor_parallel: int | None = Field(default=None, ge=1)
    """Devices of this host that share each step. Unset: on a CPU one; else as many as there are and the model's heads
    and MLP divide by."""

    device_memory_fraction: float | None = Field(default=None, gt=0, le=1)
    """The share of the device's memory for weights, KV pages and work space. Unset: 0.9; on a CPU, 0.5."""

    max_concurrent_requests: int = Field(default=64, ge=1)
    """Requests held at once, running and waiting; one more is answered 429."""

    early_requests: Literal["refuse", "wait"] = "refuse"
    """What happens to a request that comes before the model is there: 503 with Retry-After, or it waits its turn."""

    request_timeout: float = Field(default=300, gt=0)
    """Seconds that one request may take in all, waiting included."""

    default_max_tokens: int | None = Field(default=None, ge=1)
    """Completion tokens when the request does not say. Unset: 16 for completions, the rest of the context for chats."""

    default_temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    """Temperature when the request does not say. Unset: the checkpoint's generation_config.json, else 1.0."""

    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    """The largest request body; a larger one is answered 413 unread."""

    api_key: SecretStr | None = None
    """Keys that open all routes but health, separated by commas. Unset: no key is asked for."""

    admin_api_key: SecretStr | None = None
    """The key that opens /admin/stats, sent as `Authorization: Bearer …`. Unset: there is no such route."""

    drain_seconds: float = Field(default=8, ge=0)
    """Seconds that running requests get to finish after SIGTERM. Cloud Run kills after 10."""

    host: str = "0.0.0.0"
    """The address to listen on."""

    port: int = Field(default=8080, ge=0, le=65535)
    """The port to listen on; 0 takes a free one and logs it."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """How much is logged. DEBUG adds tracebacks to start errors. Prompts are never logged."""

    log_format: Literal["auto", "json", "text"] = "auto"
    """`json` for Cloud Logging, `text` for people; `auto`: text on a terminal."""

    google_cloud_project: str | None = None
    """The project that the service runs in; with it a log line's trace is a link in Cloud Logging."""

    @model_validator(mode="after")
    def _settings_agree(self) -> "Settings":
        if self.model_uri and self.gcs_bucket:
            raise SettingsError("MODEL_URI", "contradicts GCS_BUCKET; set one of the two.")
        if self.gcs_bucket and not self.model_name:
            raise SettingsError("GCS_BUCKET", "needs MODEL_NAME, which says what model of the catalogue to serve.")
        if self.gcs_model_prefix and not self.gcs_bucket:
            raise SettingsError("GCS_MODEL_PREFIX", "needs GCS_BUCKET.")
        if self.max_concurrent_requests < self.max_num_seqs:
            raise SettingsError(
                "MAX_CONCURRENT_REQUESTS",
                f"is {self.max_concurrent_requests}, fewer than the {self.max_num_seqs} slots of MAX_NUM_SEQS.",
            )
        return self

    @property
    def checkpoint_uri(self) -> str | None:
        """The checkpoint's address, from MODEL_URI or from the catalogue; None means the demo model."""
        if not self.gcs_bucket or not self.model_name:
            return self.model_uri
        return "/".join(
            p
            for p in (
                f"gs://{self.gcs_bucket}",
                self.gcs_model_prefix.strip("/"),
                self.model_name.replace("/", "-"),
            )
            if p
        )

    @property
    def api_keys(self) -> tuple[str, ...]:
        """The keys of API_KEY, one by one; empty means that no key is asked for."""
        return _keys(self.api_key)

    @property
    def admin_api_keys(self) -> tuple[str, ...]:
        """The keys of ADMIN_API_KEY, one by one; empty means that /admin is closed."""
        return _keys(self.admin_api_key)


def _keys(secret: SecretStr | None) -> tuple[str, ...]:
    if secret is None:
        return ()
    return tuple(key for part in secret.get_secret_value().split(",") if (key := part.strip()))


def compiler_variables() -> dict[str, str]:
    """Return the variables that jax and XLA read by themselves and that can change what is compiled."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name in COMPILER_VARIABLES or (name.startswith("JAX_") and name not in HARMLESS_JAX_VARIABLES)
    }


def load_settings(flags: dict[str, Any], config_path: Path | None = None) -> Settings:
    """Read the settings from flags, environment, `.env` and a YAML file.

    Args:
        flags: settings given on the command line, by field name.
        config_path: the YAML file of `--config`.

    Raises:
        SettingsError: a setting is unknown, malformed or contradicts another; names the variable.
    """
    if config_path is not None and not config_path.is_file():
        raise SettingsError("--config", f"there is no file {config_path}.")
    _refuse_misspelt_variables()
    # What speaks later here is heard before what speaks earlier.
    given = _of_yaml(config_path) | _of_lines(Path(".env")) | _of_environment() | flags
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        raise _settings_error(error) from error


def _of_environment() -> dict[str, str]:
    # Any case is understood, and capitals, which sort before small letters, have the last word.
    named = ((name.lower(), value) for name, value in sorted(os.environ.items(), reverse=True))
    return {name: value for name, value in named if name in Settings.model_fields and value}


def _of_lines(path: Path) -> dict[str, str]:
    """Read variables, one a line; all of them must be settings."""
    if not path.is_file():
        return {}
    from dotenv import dotenv_values  # as little as possible is imported before the port is open

    return {name.lower(): value for name, value in dotenv_values(path).items() if value}


def _of_yaml(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    import yaml

    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError("--config", f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict | None):
        raise SettingsError("--config", f"{path} should hold settings by name, such as `port: 8080`.")
    return {str(name): value for name, value in (values or {}).items()}


def _refuse_misspelt_variables() -> None:
    known = {name.upper() for name in Settings.model_fields}
    for variable in sorted(os.environ.keys() - known):
        match = difflib.get_close_matches(variable, known, n=1, cutoff=MISSPELLING_RATIO)
        if match and len(variable) > 5:
            raise SettingsError(variable, f"is no setting of Levserve. Did you mean {match[0]}?")


def _settings_error(error: ValidationError) -> SettingsError:
    first = error.errors(include_url=False, include_context=False)[0]
    variable = str(first["loc"][0]).upper() if first["loc"] else "settings"
    if first["type"] == "extra_forbidden":
        match = difflib.get_close_matches(variable.lower(), Settings.model_fields, n=1)
        return SettingsError(
            variable, "is no setting of Levserve." + (f" Did you mean {match[0].upper()}?" if match else "")
        )
    given = "" if variable.endswith("API_KEY") else f" (it is {first['input']!r})"
    return SettingsError(variable, f"{first['msg']}{given}.")
