"""Mistral: Llama with a sliding window on every layer.

Source: Jiang et al. 2023, arXiv:2310.06825.
"""

from service.models.config import HubConfig
from service.models.description import DecoderConfig
from service.models.families.llama import (
    pre_norm_layers,
    read_attention,
    read_decoder,
    read_feed_forward,
)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `mistral`; a null `sliding_window` means no window."""
    attention = read_attention(config, window=config.int_or_none("sliding_window"))
    return read_decoder(config, pre_norm_layers(config, attention, read_feed_forward(config)))
