"""Mixtral: Mistral with experts.

Source: Jiang et al. 2024, arXiv:2401.04088; transformers `models/mixtral/modeling_mixtral.py`.
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import DecoderConfig, Experts
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
    attention = read_attention(config, window=config.int_or_none("sliding_window"))
    experts = Experts(
        config.required_int("num_local_experts"),
        config.at_most("num_experts_per_tok", "num_local_experts"),
        read_feed_forward(config),
    )
    return read_decoder(config, pre_norm_layers(config, attention, experts), MIXTRAL_NAMES)
