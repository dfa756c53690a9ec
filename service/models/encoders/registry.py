"""The served encoder families, by the `model_type` of their `config.json`; no jax."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from service.models.config import HubConfig
from service.models.encoders.classification import is_reranker, score_config
from service.models.encoders.config import EncoderConfig, VectorConfig

# Each model_type and its module.
ENCODER_FAMILIES = {"bert": "bert", "roberta": "xlm_roberta", "xlm-roberta": "xlm_roberta"}


def is_encoder(values: Mapping[str, Any]) -> bool:
    """Return whether a `config.json` describes an encoder."""
    return values.get("model_type") in ENCODER_FAMILIES


def read_encoder_config(uri: str, values: Mapping[str, Any], vector: VectorConfig) -> EncoderConfig:
    """Read the `config.json` of an encoder.

    Args:
        uri: the checkpoint, for messages.
        values: its content.
        vector: the way from hidden states to a vector; a reranker has its own.

    Raises:
        UnsupportedModel: a feature of this model is not served.
    """
    module = ENCODER_FAMILIES[values["model_type"]]
    config = HubConfig(uri, values)
    chosen = score_config(config) if is_reranker(config) else vector
    return import_module(f"service.models.encoders.{module}").read_config(config, chosen)
