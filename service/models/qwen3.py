"""Qwen3: Llama with an RMS norm over each head's query and key.

Source: Yang et al. 2025, arXiv:2505.09388.
"""

from service.models.config import DecoderConfig, HubConfig, read_decoder
from service.models.qwen2 import read_qwen_windows


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `qwen3`."""
    has_attention_bias = config.flag("attention_bias")
    return read_decoder(
        config,
        has_qkv_bias=has_attention_bias,
        has_output_bias=has_attention_bias,
        has_qk_norm=True,
        sliding_windows=read_qwen_windows(config),
    )
