"""Phi-3 and Phi-4: Llama with fused tensors, a rotation of a part of each head, and LongRoPE.

Source: Abdin et al. 2024, arXiv:2404.14219; transformers `models/phi3/modeling_phi3.py`.
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
)

FUSED_NAMES = replace(NAMES, qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `phi3`."""
    attention = read_attention(config, window=config.int_or_none("sliding_window"))
    return read_decoder(config, pre_norm_layers(config, attention, read_feed_forward(config)), FUSED_NAMES)
