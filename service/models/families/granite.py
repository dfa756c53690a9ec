"""Granite 3 and 4, with experts or without: Llama with multipliers, and in hybrids of Granite 4 layers of Mamba-2.

Source: transformers `models/granite/modeling_granite.py`, `models/granitemoe/modeling_granitemoe.py`,
`models/granitemoehybrid/modeling_granitemoehybrid.py`.
"""

from collections.abc import Sequence
from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import Attention, DecoderConfig, Experts, FeedForward, Layer, TensorNames
from service.models.families import mamba2
from service.models.families.layer_kinds import FULL, LINEAR, read_layer_kinds
from service.models.families.llama import (
    NAMES,
    pre_norm_layers,
    read_attention,
    read_decoder,
    read_feed_forward,
    read_norm,
)

MOE_NAMES = replace(
    NAMES,
    router="block_sparse_moe.router.layer",
    expert_gate_up=("block_sparse_moe.input_linear.weight",),
    expert_down="block_sparse_moe.output_linear.weight",
)
HYBRID_NAMES = replace(MOE_NAMES, gate_up=("shared_mlp.input_linear",), down="shared_mlp.output_linear", **mamba2.NAMES)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `granite`, `granitemoe` or `granitemoehybrid`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    has_bias = config.flag("attention_bias")
    attention = read_attention(
        config, has_bias=has_bias, has_output_bias=has_bias, scale=config.number("attention_multiplier")
    )
    if config.values["model_type"] == "granitemoehybrid":
        return _multiplied(config, _hybrid_layers(config, attention), HYBRID_NAMES)
    if config.values["model_type"] == "granitemoe":
        count, top_k = (
            config.required_int("num_local_experts"),
            config.at_most("num_experts_per_tok", "num_local_experts"),
        )
        experts = Experts(count, top_k, read_feed_forward(config))
        return _multiplied(config, pre_norm_layers(config, attention, experts), MOE_NAMES)
    feed_forward = read_feed_forward(config, has_bias=config.flag("mlp_bias"))
    return _multiplied(config, pre_norm_layers(config, attention, feed_forward), NAMES)


def _multiplied(config: HubConfig, layers: Sequence[Layer], names: TensorNames) -> DecoderConfig:
    residual = config.number("residual_multiplier")
    return read_decoder(
        config,
        [replace(layer, residual_multiplier=residual) for layer in layers],
        names,
        embed_multiplier=config.number("embedding_multiplier"),
        logits_multiplier=1 / config.number("logits_scaling"),
    )


def _hybrid_layers(config: HubConfig, attention: Attention) -> list[Layer]:
    """Read layers that attend or keep a state; each has a feed-forward, and beside it experts, if there are any."""
    config.refuse_unless("position_embedding_type", "rope", "nope")
    if config.values.get("position_embedding_type") != "rope":
        attention = replace(attention, rotation=None)
    num_layers, norm = config.required_int("num_hidden_layers"), read_norm(config)
    kinds = read_layer_kinds(config, [LINEAR] * num_layers, (FULL, LINEAR))
    if FULL not in kinds:
        raise config.refuse(f"layer_types names no {FULL}, without which a model is not served.")
    state = None
    if LINEAR in kinds:
        width = config.required_int("mamba_expand") * config.required_int("hidden_size")
        state = mamba2.read_state_space(config, width, norm)
    feed_forward = _hybrid_feed_forward(config)
    return [
        Layer(attention, feed_forward, norm, norm)
        if kind == FULL
        else Layer(None, feed_forward, norm, norm, state=state)
        for kind in kinds
    ]


def _hybrid_feed_forward(config: HubConfig) -> FeedForward | Experts:
    activation = config.activation("hidden_act")
    shared = FeedForward(config.required_int("shared_intermediate_size"), activation)
    if config.values["num_local_experts"] == 0:
        return shared
    return Experts(
        config.required_int("num_local_experts"),
        config.at_most("num_experts_per_tok", "num_local_experts"),
        FeedForward(config.required_int("intermediate_size"), activation),
        shared=shared,
    )
