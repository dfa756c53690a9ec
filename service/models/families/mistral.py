"""Mistral: Llama with a sliding window on every layer.

Source: Jiang et al. 2023, arXiv:2310.06825.
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import DecoderConfig
from service.models.families.layer_kinds import read_windows
from service.models.families.llama import (
    pre_norm_layers,
    read_attention,
    read_decoder,
    read_feed_forward,
)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `mistral`; a null `sliding_window` means no window."""
    attention = read_attention(config)
    layers = [replace(attention, window=window) for window in read_windows(config)]
    return read_decoder(config, pre_norm_layers(config, layers, read_feed_forward(config)))
