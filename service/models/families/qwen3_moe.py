"""Qwen3-MoE: Qwen3 with experts, in all layers or in some.

Source: Yang et al. 2025, arXiv:2505.09388; transformers `models/qwen3_moe/modeling_qwen3_moe.py`.
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import DecoderConfig, Experts, FeedForward
from service.models.families.llama import pre_norm_layers, read_attention, read_decoder, read_feed_forward, read_norm
from service.models.families.qwen3 import QK_NORM_NAMES

QWEN_MOE_NAMES = replace(
    QK_NORM_NAMES,
    router="mlp.gate",
    expert_gate_up=("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj"),
    expert_down="mlp.experts.{}.down_proj",
)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `qwen3_moe`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for more experts than there are.
    """
    has_bias = config.flag("attention_bias")
    attention = read_attention(
        config,
        has_bias=has_bias,
        has_output_bias=has_bias,
        qk_norm=read_norm(config),
        window=config.int_or_none("sliding_window") if config.flag("use_sliding_window") else None,
    )
    dense, experts = read_feed_forward(config), read_experts(config)
    layers = pre_norm_layers(config, attention, experts)
    are_dense = _dense_layers(config)
    return read_decoder(
        config,
        [replace(layer, feed_forward=dense) if number in are_dense else layer for number, layer in enumerate(layers)],
        QWEN_MOE_NAMES,
    )


def read_experts(config: HubConfig) -> Experts:
    """Read the experts of a layer.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for more experts than there are.
    """
    return Experts(
        config.required_int("num_experts"),
        config.at_most("num_experts_per_tok", "num_experts"),
        FeedForward(config.required_int("moe_intermediate_size"), config.activation("hidden_act")),
        weight_sum=1.0 if config.flag("norm_topk_prob") else None,
    )


def _dense_layers(config: HubConfig) -> set[int]:
    """Return the layers without experts."""
    num_layers, step = config.required_int("num_hidden_layers"), config.required_int("decoder_sparse_step")
    named = config.values.get("mlp_only_layers") or []
    if not isinstance(named, list) or not set(range(num_layers)).issuperset(named):
        raise config.refuse(f"mlp_only_layers must hold numbers of layers below {num_layers}.")
    return {layer for layer in range(num_layers) if layer in named or (layer + 1) % step}
