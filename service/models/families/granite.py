"""Granite 3, with experts or without, and the dense models of Granite 4: Llama with multipliers.

Source: transformers `models/granite/modeling_granite.py`, `models/granitemoe/modeling_granitemoe.py`,
`models/granitemoehybrid/modeling_granitemoehybrid.py`.
"""

from dataclasses import replace
from typing import Any

from service.models.config import HubConfig
from service.models.description import Attention, DecoderConfig, Experts, FeedForward, TensorNames
from service.models.families.layer_kinds import FORMER_KINDS, FULL
from service.models.families.llama import NAMES, pre_norm_layers, read_attention, read_decoder, read_feed_forward

MOE_NAMES = replace(
    NAMES,
    router="block_sparse_moe.router.layer",
    expert_gate_up=("block_sparse_moe.input_linear.weight",),
    expert_down="block_sparse_moe.output_linear.weight",
)
HYBRID_NAMES = replace(NAMES, gate_up=("shared_mlp.input_linear",), down="shared_mlp.output_linear")


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
        attention, feed_forward = _dense_hybrid(config, attention)
        return _multiplied(config, attention, feed_forward, HYBRID_NAMES)
    if config.values["model_type"] == "granitemoe":
        count, top_k = (
            config.required_int("num_local_experts"),
            config.at_most("num_experts_per_tok", "num_local_experts"),
        )
        return _multiplied(config, attention, Experts(count, top_k, read_feed_forward(config)), MOE_NAMES)
    return _multiplied(config, attention, read_feed_forward(config, has_bias=config.flag("mlp_bias")), NAMES)


def _multiplied(
    config: HubConfig, attention: Attention, feed_forward: FeedForward | Experts, names: TensorNames
) -> DecoderConfig:
    residual = config.number("residual_multiplier")
    layers = pre_norm_layers(config, attention, feed_forward)
    return read_decoder(
        config,
        [replace(layer, residual_multiplier=residual) for layer in layers],
        names,
        embed_multiplier=config.number("embedding_multiplier"),
        logits_multiplier=1 / config.number("logits_scaling"),
    )


def _dense_hybrid(config: HubConfig, attention: Attention) -> tuple[Attention, FeedForward]:
    """Read a hybrid whose layers are all attention, and which has no experts."""
    if config.values["num_local_experts"] != 0:
        raise config.refuse("num_local_experts must be 0: of granitemoehybrid only the dense models are served.")
    kinds = [FORMER_KINDS.get(str(kind), kind) for kind in _list(config, "layer_types") or ["mamba"]]
    if any(kind != FULL for kind in kinds) or len(kinds) != config.required_int("num_hidden_layers"):
        raise config.refuse("layer_types must name attention for each layer; Mamba's layers are not served.")
    config.refuse_unless("position_embedding_type", "rope", "nope")
    if config.values.get("position_embedding_type") != "rope":
        attention = replace(attention, rotation=None)
    size = config.required_int("shared_intermediate_size")
    return attention, FeedForward(size, config.activation("hidden_act"))


def _list(config: HubConfig, key: str) -> list[Any]:
    value = config.values[key]
    if value is not None and not isinstance(value, list):
        raise config.refuse(f"{key} is {value!r}, which should be a list.")
    return value or []
