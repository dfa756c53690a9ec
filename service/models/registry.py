"""The served model families, by the `model_type` of their `config.json`; no jax."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from service.errors import UnsupportedModel
from service.models.config import DecoderConfig, HubConfig

# Each is a module of this package, named after its model_type.
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def read_config(uri: str, values: Mapping[str, Any]) -> DecoderConfig:
    """Read a `config.json` of any served family.

    Args:
        uri: the checkpoint, for messages.
        values: its content.

    Raises:
        UnsupportedModel: the family, or a feature of this model, is not served.
    """
    model_type = values.get("model_type")
    if model_type not in FAMILIES:
        served = ", ".join(FAMILIES)
        raise UnsupportedModel(uri, f"config.json: model_type {model_type!r} is not served. Served: {served}.")
    return import_module(f"service.models.{model_type}").read_config(HubConfig(uri, values))
