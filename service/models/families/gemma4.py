"""Gemma 4, its text models: layers with a window and layers without one, whose heads differ in number and size.

The layers without a window have no projection of values: values are what the projection of keys gives, before the norm
of keys. Norms have plain scales, a number multiplies what leaves each layer, and scores are not scaled.

Source: transformers `models/gemma4/modeling_gemma4.py`, `models/gemma4/configuration_gemma4.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.models.config import HubConfig
from service.models.description import (
    Attention,
    DecoderConfig,
    Experts,
    ExpertsBeside,
    FeedForward,
    Layer,
    Norm,
)
from service.models.families.gemma import gemma_feed_forward
from service.models.families.gemma3_text import NAMES
from service.models.families.hub_keys import resolved
from service.models.families.layer_kinds import FULL, SLIDING, read_layer_kinds
from service.models.families.llama import read_attention, read_decoder
from service.models.families.rope_parameters import read_ropes
from service.models.quantization_config import read_layer_storage

TEXT_NAMES = replace(
    NAMES,
    output_scale="layer_scalar",
    router="router.proj",
    router_norm="router.scale",
    expert_scales="router.per_expert_scale",
    expert_gate_up=("experts.gate_up_proj",),
    expert_down="experts.down_proj",
    beside_norm="pre_feedforward_layernorm_2",
    beside_post_norm="post_feedforward_layernorm_2",
    feed_forward_post_norm="post_feedforward_layernorm_1",
)
# As files of today name the tensors of a model with images, without `model.`; see `bare_name` for others.
PART_NAMES = replace(TEXT_NAMES, prefix="language_model.")
TEXT_TYPES = {"gemma4": "gemma4_text", "gemma4_unified": "gemma4_unified_text"}
EVERY = 6  # layers, of which the last sees a whole text


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `gemma4`, `gemma4_unified`, or of the text model of one.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    model_type = str(config.values["model_type"])
    if model_type not in TEXT_TYPES:
        return _read_text(config)
    text = config.part("text_config")
    text.refuse_unless("model_type", TEXT_TYPES[model_type])
    decoder = _read_text(resolved(text, TEXT_TYPES[model_type]))
    return replace(
        decoder,
        model_type=model_type,
        names=PART_NAMES,
        has_tied_embeddings=config.flag("tie_word_embeddings"),
        layer_storage=read_layer_storage(config.uri, config.values),
    )


def _read_text(config: HubConfig) -> DecoderConfig:
    config.refuse_unless("use_bidirectional_attention", "vision")  # of the rows of pictures, which are not served
    config.refuse_unless("attention_bias", False)
    if config.values.get("num_kv_shared_layers"):
        raise config.refuse(
            "num_kv_shared_layers: layers that read the keys and values of others (E2B, E4B) are not served. Serve a "
            "Gemma 4 without them, such as 31B or 12B."
        )
    if config.values.get("hidden_size_per_layer_input"):
        raise config.refuse("hidden_size_per_layer_input: embeddings of each layer (E2B, E4B) are not served.")
    norm = Norm(config.number("rms_norm_eps"), is_scaled_wide=True)
    kinds = _read_kinds(config)
    feed_forward = gemma_feed_forward(config, "hidden_activation")
    attentions = {layer: _read_attention(config, norm, kind, layer) for layer, kind in enumerate(kinds)}
    beside = _read_experts(config, norm) if config.flag("enable_moe_block") else None
    layers = [
        Layer(attentions[layer], feed_forward, norm, norm, norm, norm, beside=beside, has_output_scale=True)
        for layer in attentions
    ]
    return read_decoder(
        config,
        layers,
        TEXT_NAMES,
        final_norm=norm,
        has_tied_embeddings=config.flag("tie_word_embeddings"),
        embed_multiplier=config.required_int("hidden_size") ** 0.5,
        logits_soft_cap=config.optional_number("final_logit_softcapping"),
    )


def _read_experts(config: HubConfig, norm: Norm) -> ExpertsBeside:
    size = config.required_int("moe_intermediate_size")
    experts = Experts(
        config.required_int("num_experts"),
        config.at_most("top_k_experts", "num_experts"),
        FeedForward(size, config.activation("hidden_activation")),
        router_norm=replace(norm, is_scaled_wide=False),
        has_expert_scales=True,
    )
    return ExpertsBeside(experts, norm, norm, norm)


def _read_kinds(config: HubConfig) -> list[str]:
    """Return the kind of each layer; the last one sees a whole text, whatever the file says."""
    num_layers = config.required_int("num_hidden_layers")
    default = [SLIDING if (layer + 1) % EVERY else FULL for layer in range(num_layers)]
    return [*list(read_layer_kinds(config, default))[:-1], FULL]


def _read_attention(config: HubConfig, norm: Norm, kind: str, layer: int) -> Attention:
    own = HubConfig(config.uri, {**config.values, **_of_layer(config, kind, layer)}, config.max_model_len)
    plain = read_attention(
        own,
        rotation=None,
        scale=1.0,
        qk_norm=norm,
        value_norm=replace(norm, has_weight=False),
        has_values=kind == SLIDING or not config.flag("attention_k_eq_v"),
        window=config.required_int("sliding_window") if kind == SLIDING else None,
    )
    return replace(plain, rotation=read_ropes(config, head_dim=plain.head_dim)[kind])


def _of_layer(config: HubConfig, kind: str, layer: int) -> Mapping[str, Any]:
    """Return what a layer has in place of the values of all: by its number, or as a layer without a window.

    Raises:
        UnsupportedModel: `per_layer_config` is no object by numbers of layers, or changes other values.
    """
    by_layer = config.values.get("per_layer_config")
    if by_layer is None:
        if kind == SLIDING:
            return {}
        num_kv_heads = config.values.get("num_global_key_value_heads") if config.flag("attention_k_eq_v") else None
        found = {"head_dim": config.values.get("global_head_dim"), "num_key_value_heads": num_kv_heads}
        return {key: value for key, value in found.items() if value is not None}
    own = by_layer.get(str(layer), {}) if isinstance(by_layer, Mapping) else None
    if not isinstance(own, Mapping) or not own.keys() <= {"head_dim", "num_key_value_heads"}:
        raise config.refuse(
            f"per_layer_config is {by_layer!r}, which should have head_dim and num_key_value_heads by number of layer."
        )
    return own
