"""The settings of the services that came before this one; docs/migrate.md maps all of theirs."""

from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, TypeAdapter, ValidationError, model_validator

from service.settings.models import ModelSettings

# What LOCAL_DEV sets, unless it is set otherwise. One slot also means few executables, so a first start is short.
LOCAL_DEFAULTS = {"host": "127.0.0.1", "log_format": "text", "max_num_seqs": 1}
LOCAL_FOLDER = Path("models")
# The settings that name what is served.
SOURCES = ("model_uri", "gcs_bucket", "catalogue_uri", "models_config")


class EarlierSettings(ModelSettings):
    """Switches that deployments of the earlier services set."""

    local_dev: bool = Field(
        default=False,
        description="Settings for a developer's machine: HOST is 127.0.0.1, LOG_FORMAT is `text`, MAX_NUM_SEQS is 1, "
        "and CATALOGUE_URI is the folder `models` if that is there and no other setting names a model. What is set "
        "otherwise wins.",
    )
    auto_download_models: bool = Field(
        default=True,
        description="Whether checkpoints are fetched. `false`: one that is neither a path nor in LOCAL_MODEL_CACHE is "
        "refused.",
    )
    hf_token: SecretStr | None = Field(
        default=None, description="The token for gated and private repositories of the Hugging Face Hub."
    )
    enable_metrics: bool = Field(
        default=True, description="Whether `/metrics` exists on PORT. METRICS_PORT has it either way."
    )

    @model_validator(mode="before")
    @classmethod
    def _local_defaults(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not _is_true(given.get("local_dev", False)):
            return given
        catalogue = {"catalogue_uri": str(LOCAL_FOLDER)} if LOCAL_FOLDER.is_dir() else {}
        if any(given.get(name) for name in (*SOURCES, "model_name")):
            catalogue = {}
        return LOCAL_DEFAULTS | catalogue | given


def _is_true(value: Any) -> bool:
    try:
        return TypeAdapter(bool).validate_python(value)
    except ValidationError:  # the field's own validation says so
        return False
