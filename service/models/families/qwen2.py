"""Qwen2 and Qwen2.5: Llama with a bias on query, key and value.

Source: Yang et al. 2024, arXiv:2407.10671; transformers `configuration_qwen2.py` (which layers have a window).
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import Attention, DecoderConfig
from service.models.families.layer_kinds import read_windows
from service.models.families.llama import (
    pre_norm_layers,
    read_attention,
    read_decoder,
    read_feed_forward,
)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `qwen2`."""
    layers = with_qwen_windows(config, read_attention(config, has_bias=True))
    return read_decoder(config, pre_norm_layers(config, layers, read_feed_forward(config)))


def with_qwen_windows(config: HubConfig, attention: Attention) -> list[Attention]:
    """Return each layer's attention: with a window from `max_window_layers` on, and only if `use_sliding_window`.

    Raises:
        UnsupportedModel: a value is malformed.
    """
    if not config.flag("use_sliding_window"):
        return [attention] * config.required_int("num_hidden_layers")
    windows = read_windows(config, first_layer=int(config.values.get("max_window_layers", 28)))
    return [replace(attention, window=window) for window in windows]
