"""Qwen2 and Qwen2.5: Llama with a bias on query, key and value.

Source: Yang et al. 2024, arXiv:2407.10671; transformers `configuration_qwen2.py` (which layers have a window).
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import Attention, DecoderConfig
from service.models.families.layer_kinds import FULL, SLIDING, read_layer_kinds
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
    """Return each layer's attention: with a window by `layer_types`, or from `max_window_layers` on.

    No layer has one unless `use_sliding_window` is set.

    Raises:
        UnsupportedModel: a value is malformed.
    """
    num_layers, first = config.required_int("num_hidden_layers"), config.values["max_window_layers"]
    if type(first) is not int or first < 0:
        raise config.refuse(f"max_window_layers is {first!r}, which should be an integer from 0 on.")
    window = config.int_or_none("sliding_window") if config.flag("use_sliding_window") else None
    kinds = read_layer_kinds(config, [SLIDING if layer >= first else FULL for layer in range(num_layers)])
    return [replace(attention, window=window if kind == SLIDING else None) for kind in kinds]
