"""Gemma: norms whose scale is one more than their weight, scaled embeddings, and wide heads.

Source: Gemma Team 2024, arXiv:2403.08295; transformers `models/gemma/modeling_gemma.py`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from service.models.config import HubConfig
from service.models.description import Activation, Attention, DecoderConfig, FeedForward, Layer, Norm, TensorNames
from service.models.families.llama import NAMES, read_attention, read_decoder


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `gemma`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    norm, attention = gemma_norm(config), gemma_attention(config)
    feed_forward = gemma_feed_forward(config, "hidden_act")
    if config.values["hidden_act"] == "gelu":  # so the first files call the approximation
        feed_forward = replace(feed_forward, activation=Activation.GELU_TANH)
    layer = Layer(attention, feed_forward, attention_norm=norm, mlp_norm=norm)
    return read_gemma(config, [layer] * config.required_int("num_hidden_layers"), NAMES)


def gemma_norm(config: HubConfig) -> Norm:
    """Read the norm that all Gemmas have."""
    return Norm(config.number("rms_norm_eps"), is_plus_one=True, is_scaled_wide=True)


def gemma_attention(config: HubConfig, **options: Any) -> Attention:
    """Read the heads of any Gemma; `options` are further fields of the description."""
    config.refuse_unless("use_bidirectional_attention", False)
    has_bias = config.flag("attention_bias")
    return read_attention(config, has_bias=has_bias, has_output_bias=has_bias, **options)


def gemma_feed_forward(config: HubConfig, key: str) -> FeedForward:
    """Read the feed-forward of any Gemma; `key` names its activation."""
    return FeedForward(config.required_int("intermediate_size"), config.activation(key))


def read_gemma(config: HubConfig, layers: Sequence[Layer], names: TensorNames, **options: Any) -> DecoderConfig:
    """Read the rest of the description of any Gemma; `options` are further fields of it."""
    return read_decoder(
        config,
        layers,
        names,
        final_norm=gemma_norm(config),
        has_tied_embeddings=config.flag("tie_word_embeddings"),
        embed_multiplier=config.required_int("hidden_size") ** 0.5,
        **options,
    )
