"""Mixtral: Mistral with experts.

Source: Jiang et al. 2024, arXiv:2401.04088; transformers `models/mixtral/modeling_mixtral.py`.
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import DecoderConfig, Experts
from service.models.families.layer_kinds import read_windows
from service.models.families.llama import NAMES, pre_norm_layers, read_attention, read_decoder, read_feed_forward

MIXTRAL_NAMES = replace(
    NAMES,
    router="block_sparse_moe.gate",
    expert_gate_up=("block_sparse_moe.experts.{}.w1", "block_sparse_moe.experts.{}.w3"),
    expert_down="block_sparse_moe.experts.{}.w2",
)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `mixtral`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for more experts than there are.
    """
    attention = read_attention(config, default_theta=1_000_000.0)
    layers = [replace(attention, window=window) for window in read_windows(config)]
    expert = replace(read_feed_forward(config), has_bias=False)
    experts = Experts(
        config.required_int("num_local_experts"), config.at_most("num_experts_per_tok", "num_local_experts"), expert
    )
    return read_decoder(config, pre_norm_layers(config, layers, experts), MIXTRAL_NAMES)
