"""Gemma 3, its text model: Gemma 2 with norms of queries and keys, and with a rotation for each kind of layer.

Source: Gemma Team 2025, arXiv:2503.19786; transformers `models/gemma3/configuration_gemma3.py`.
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import DecoderConfig
from service.models.families.gemma import gemma_attention, gemma_norm, read_gemma
from service.models.families.gemma2 import FOUR_NORM_NAMES, four_norm_layers
from service.models.families.layer_kinds import FULL, SLIDING, read_layer_kinds
from service.models.families.rope_parameters import read_ropes

NAMES = replace(FOUR_NORM_NAMES, query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `gemma3_text`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    kinds, full = (
        read_gemma3_kinds(config),
        gemma_attention(
            config,
            scale=config.number("query_pre_attn_scalar") ** -0.5,
            soft_cap=None,  # transformers reads attn_logit_softcapping, and never applies it
            qk_norm=gemma_norm(config),
            rotation=None,
        ),
    )
    ropes = read_ropes(config, head_dim=full.head_dim)
    full = replace(full, rotation=ropes[FULL])
    sliding = replace(full, window=config.int_or_none("sliding_window"), rotation=ropes[SLIDING])
    layers = four_norm_layers(config, [sliding if kind == SLIDING else full for kind in kinds])
    return read_gemma(config, layers, NAMES, logits_soft_cap=config.optional_number("final_logit_softcapping"))


def read_gemma3_kinds(config: HubConfig) -> list[str]:
    """Return the kind of each layer: as a rule five that slide, then one that does not."""
    every = config.required_int("sliding_window_pattern")
    num_layers = config.required_int("num_hidden_layers")
    return list(read_layer_kinds(config, [SLIDING if (layer + 1) % every else FULL for layer in range(num_layers)]))
