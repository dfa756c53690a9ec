"""Apertus: Llama with a plain feed-forward under a learned xIELU, and norms of queries and keys.

Source: Apertus Team 2025, arXiv:2509.14233; transformers `models/apertus/modeling_apertus.py`.
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import Activation, DecoderConfig, FeedForward
from service.models.families.llama import pre_norm_layers, read_attention, read_decoder, read_norm
from service.models.families.qwen3 import QK_NORM_NAMES

NAMES = replace(
    QK_NORM_NAMES,
    attention_norm="attention_layernorm",
    mlp_norm="feedforward_layernorm",
    gate_up=("mlp.up_proj",),
    activation="mlp.act_fn",
)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `apertus`."""
    has_bias = config.flag("attention_bias")
    attention = read_attention(
        config,
        has_bias=has_bias,
        has_output_bias=has_bias,
        qk_norm=read_norm(config),
    )
    is_learned = config.values["hidden_act"] == "xielu"
    activation = Activation.XIELU if is_learned else config.activation("hidden_act")
    feed_forward = FeedForward(config.required_int("intermediate_size"), activation, is_gated=False)
    return read_decoder(config, pre_norm_layers(config, attention, feed_forward), NAMES)
