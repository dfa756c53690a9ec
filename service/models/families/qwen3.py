"""Qwen3: Llama with an RMS norm over each head's query and key.

Source: Yang et al. 2025, arXiv:2505.09388.
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import DecoderConfig
from service.models.families.llama import (
    NAMES,
    pre_norm_layers,
    read_attention,
    read_decoder,
    read_feed_forward,
    read_norm,
)
from service.models.families.qwen2 import with_qwen_windows

QK_NORM_NAMES = replace(NAMES, query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `qwen3`."""
    has_bias = config.flag("attention_bias")
    attention = read_attention(config, has_bias=has_bias, has_output_bias=has_bias, qk_norm=read_norm(config))
    layers = with_qwen_windows(config, attention)
    return read_decoder(config, pre_norm_layers(config, layers, read_feed_forward(config)), QK_NORM_NAMES)
