"""The served encoder families, by the `model_type` of their `config.json`; no jax."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from service.models.config import HubConfig
from service.models.encoders.config import EncoderConfig, VectorConfig

# Each model_type and its module.
ENCODER_FAMILIES = {"bert": "bert"}


def is_encoder(values: Mapping[str, Any]) -> bool:
    """Return whether a `config.json` describes an encoder."""
    return values.get("model_type") in ENCODER_FAMILIES


def read_encoder_config(uri: str, values: Mapping[str, Any], vector: VectorConfig) -> EncoderConfig:
    """Read the `config.json` of an encoder.

    Args:
        uri: the checkpoint, for messages.
        values: its content.
        vector: the way from hidden states to a vector.

    Raises:
        UnsupportedModel: a feature of this model is not served.
    """
    module = ENCODER_FAMILIES[values["model_type"]]
    return import_module(f"service.models.encoders.{module}").read_config(HubConfig(uri, values), vector)
