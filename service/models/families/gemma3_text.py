"""Gemma 3, its text model: Gemma 2 with norms of queries and keys, and with a rotation for each kind of layer.

Source: Gemma Team 2025, arXiv:2503.19786; transformers `models/gemma3/configuration_gemma3.py`.
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import DecoderConfig
from service.models.families.gemma import HEAD_DIM, gemma_attention, gemma_norm, read_gemma
from service.models.families.gemma2 import FOUR_NORM_NAMES, four_norm_layers
from service.models.families.layer_kinds import FULL, SLIDING, read_layer_kinds, read_ropes
from service.models.rope import RopeConfig

NAMES = replace(FOUR_NORM_NAMES, query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")
THETA_KEYS = {FULL: ("rope_theta", 1_000_000.0), SLIDING: ("rope_local_base_freq", 10_000.0)}


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `gemma3_text`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    kinds, ropes = read_gemma3_kinds(config), read_gemma3_ropes(config)
    full = gemma_attention(
        config,
        scale=config.optional_int("query_pre_attn_scalar", 256) ** -0.5,
        soft_cap=config.optional_number("attn_logit_softcapping"),
        qk_norm=gemma_norm(config),
        rotation=ropes[FULL],
    )
    sliding = replace(full, window=config.optional_int("sliding_window", 4096), rotation=ropes[SLIDING])
    layers = four_norm_layers(config, [sliding if kind == SLIDING else full for kind in kinds])
    return read_gemma(config, layers, NAMES, logits_soft_cap=config.optional_number("final_logit_softcapping"))


def read_gemma3_kinds(config: HubConfig) -> list[str]:
    """Return the kind of each layer: as a rule five that slide, then one that does not."""
    every = config.optional_int("sliding_window_pattern", config.optional_int("_sliding_window_pattern", 6))
    num_layers = config.required_int("num_hidden_layers")
    return list(read_layer_kinds(config, [SLIDING if (layer + 1) % every else FULL for layer in range(num_layers)]))


def read_gemma3_ropes(config: HubConfig) -> dict[str, RopeConfig]:
    """Return the rotation of each kind of layer."""
    return read_ropes(
        config,
        THETA_KEYS,
        head_dim=config.optional_int("head_dim", HEAD_DIM),
        context_len=config.required_int("max_position_embeddings"),
    )
