"""The settings that say which models a process serves."""

from pydantic import BaseModel, ConfigDict, Field, model_validator

from service.errors import SettingsError


class ModelSettings(BaseModel):
    """One model, or a catalogue of models that are loaded on demand."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model_uri: str | None = Field(
        default=None,
        description="The checkpoint: `gs://bucket/prefix`, `hf://org/name[@revision]` or a path. Unset: the demo "
        "model.",
    )
    model_name: str | None = Field(
        default=None,
        description="The name that clients send as `model`, or several, separated by commas. Unset: the last part of "
        "the checkpoint's address.",
    )
    gcs_bucket: str | None = Field(
        default=None,
        description="A bucket whose folders are models, loaded on demand. With MODEL_NAME, the bucket of that one "
        "model; a slash in a name is a hyphen in the bucket.",
    )
    gcs_model_prefix: str = Field(default="", description="The folder of the models inside GCS_BUCKET.")
    catalogue_uri: str | None = Field(
        default=None,
        description="A folder whose folders are models, loaded on demand: a path, or `gs://…` in place of GCS_BUCKET.",
    )
    models_config: str | None = Field(
        default=None,
        description="A YAML file that describes models: names, addresses, options. A path or `gs://…`.",
    )
    models: str | None = Field(
        default=None,
        description="The only models of the catalogue to serve, separated by commas; they are loaded at the start.",
    )
    catalogue_ttl: float = Field(
        default=60, gt=0, description="Seconds after which the folder or bucket of models is listed again."
    )
    max_cached_models: int = Field(
        default=2,
        ge=1,
        description="Models of a catalogue that are loaded at once. The least recently used one goes first, and none "
        "that answers a request.",
    )
    host_cache_bytes: int = Field(
        default=0,
        ge=0,
        description="Host memory for the weights of models that were unloaded from an accelerator, in bytes: one copy "
        "brings them back. 0 for none.",
    )
    model_load_wait_seconds: float = Field(
        default=60,
        gt=0,
        description="Seconds that a request waits for its model to be loaded; then it gets a 503 with the progress.",
    )

    @model_validator(mode="after")
    def _models_agree(self) -> "ModelSettings":
        if self.model_uri and self.gcs_bucket:
            raise SettingsError("MODEL_URI", "contradicts GCS_BUCKET; set one of the two.")
        if self.gcs_model_prefix and not self.gcs_bucket:
            raise SettingsError("GCS_MODEL_PREFIX", "needs GCS_BUCKET.")
        if self.catalogue_uri and self.gcs_bucket:
            raise SettingsError("CATALOGUE_URI", "contradicts GCS_BUCKET; set one of the two.")
        if self.catalogue_uri is not None or self.models_config is not None:
            for variable, value in (("MODEL_URI", self.model_uri), ("MODEL_NAME", self.model_name)):
                if value:
                    raise SettingsError(variable, "names one model, and CATALOGUE_URI or MODELS_CONFIG several.")
        if self.models and not self.has_catalogue:
            raise SettingsError(
                "MODELS", "needs a catalogue: GCS_BUCKET without MODEL_NAME, CATALOGUE_URI, or MODELS_CONFIG."
            )
        return self

    @property
    def has_catalogue(self) -> bool:
        """Whether models are loaded on demand; otherwise the process serves one."""
        is_bucket = self.gcs_bucket is not None and not self.model_names
        return is_bucket or self.catalogue_uri is not None or self.models_config is not None

    @property
    def checkpoint_uri(self) -> str | None:
        """The address of the one checkpoint, from MODEL_URI or GCS_BUCKET; None means the demo model."""
        if not self.gcs_bucket or not self.model_names:
            return self.model_uri
        return f"{self._bucket_uri}/{self.model_names[0].replace('/', '-')}"

    @property
    def catalogue_address(self) -> str | None:
        """The folder whose folders are models; None if all models are described."""
        return self.catalogue_uri if self.gcs_bucket is None else self._bucket_uri

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names of MODEL_NAME, each once; the first is the model's own. Empty if it is unset."""
        return _names(self.model_name)

    @property
    def wanted_models(self) -> tuple[str, ...]:
        """The names of MODELS, each once; empty for all of the catalogue."""
        return _names(self.models)

    @property
    def _bucket_uri(self) -> str:
        return "/".join(part for part in (f"gs://{self.gcs_bucket}", self.gcs_model_prefix.strip("/")) if part)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for part in (text or "").split(",") if (name := part.strip())))
