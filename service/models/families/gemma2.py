"""Gemma 2: Gemma with norms after both branches, capped scores and logits, and a window on every other layer.

Source: Gemma Team 2024, arXiv:2408.00118; transformers `models/gemma2/configuration_gemma2.py`.
"""

from collections.abc import Sequence
from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import Attention, DecoderConfig, Layer
from service.models.families.gemma import gemma_attention, gemma_feed_forward, gemma_norm, read_gemma
from service.models.families.layer_kinds import FULL, SLIDING, read_layer_kinds
from service.models.families.llama import NAMES

FOUR_NORM_NAMES = replace(
    NAMES,
    attention_post_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_post_norm="post_feedforward_layernorm",
)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `gemma2`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    num_layers = config.required_int("num_hidden_layers")
    full = gemma_attention(
        config,
        scale=config.number("query_pre_attn_scalar") ** -0.5,
        soft_cap=config.optional_number("attn_logit_softcapping"),
    )
    sliding = replace(full, window=config.int_or_none("sliding_window"))
    kinds = read_layer_kinds(config, [FULL if layer % 2 else SLIDING for layer in range(num_layers)])
    layers = four_norm_layers(config, [sliding if kind == SLIDING else full for kind in kinds])
    cap = config.optional_number("final_logit_softcapping")
    return read_gemma(config, layers, FOUR_NORM_NAMES, logits_soft_cap=cap)


def four_norm_layers(config: HubConfig, attentions: Sequence[Attention]) -> list[Layer]:
    """Return layers with norms before and after both branches."""
    norm, feed_forward = gemma_norm(config), gemma_feed_forward(config, "hidden_activation")
    return [Layer(attention, feed_forward, norm, norm, norm, norm) for attention in attentions]
