"""Gemma 4: layers with a window and layers without one, whose heads differ in number and size.

The layers without a window have no projection of values: values are what the projection of keys gives, before the norm
of keys. Norms have plain scales, a number multiplies what leaves each layer, and scores are not scaled. In the smaller
models (E2B, E4B) the last layers read the keys and values of an earlier one of their kind, and each layer has an input
of its own.

It sees pictures of any shape; a square of patches becomes one row. In the larger models the rows of a picture see each
other, but only in the layers with a window. A file without `vision_config` is that of a text model, and so is one of
`gemma4_unified`, whose pictures are not served; sound is not heard.

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
    PatchEncoder,
    PatchTurns,
    PerLayerEmbeddings,
    PerLayerInput,
    Pooler,
    TensorNames,
)
from service.models.families.gemma import gemma_feed_forward
from service.models.families.gemma3_text import NAMES
from service.models.families.hub_keys import resolved, resolved_part
from service.models.families.layer_kinds import FULL, SLIDING, read_layer_kinds
from service.models.families.llama import read_attention, read_decoder
from service.models.families.qwen3_vl import read_theta
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
    per_layer_gate="per_layer_input_gate",
    per_layer_projection="per_layer_projection",
    per_layer_post_norm="post_per_layer_input_norm",
    per_layer_embed="embed_tokens_per_layer",
    per_layer_model_projection="per_layer_model_projection",
    per_layer_norm="per_layer_projection_norm",
    feed_forward_post_norm="post_feedforward_layernorm_1",
)
# As files of today name the tensors of a model with images, without `model.`; see `bare_name` for others.
PART_NAMES = replace(TEXT_NAMES, prefix="language_model.")
VISION_NAMES = TensorNames(
    prefix="vision_tower.",
    layers="encoder.layers",
    embed="patch_embedder.input_proj",
    positions="patch_embedder.position_embedding_table",
    final_norm="",
    attention_norm="input_layernorm",
    qkv=("self_attn.q_proj.linear", "self_attn.k_proj.linear", "self_attn.v_proj.linear"),
    query_norm="self_attn.q_norm",
    key_norm="self_attn.k_norm",
    output="self_attn.o_proj.linear",
    attention_post_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    gate_up=("mlp.gate_proj.linear", "mlp.up_proj.linear"),
    down="mlp.down_proj.linear",
    mlp_post_norm="post_feedforward_layernorm",
)
PROJECTION = "embed_vision.embedding_projection.weight"
STANDARD = ("vision_tower.std_bias", "vision_tower.std_scale")
TEXT_TYPES = {"gemma4": "gemma4_text", "gemma4_unified": "gemma4_unified_text"}
THETA = 100.0  # of the rotation by row and column, of a file that does not say
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
    text = resolved(text, TEXT_TYPES[model_type])
    decoder = _read_text(text)
    has_encoder = model_type == "gemma4" and config.values.get("vision_config") is not None
    return replace(
        decoder,
        model_type=model_type,
        names=PART_NAMES,
        has_tied_embeddings=config.flag("tie_word_embeddings"),
        layer_storage=read_layer_storage(config.uri, config.values),
        image_encoder=_encoder(config, text) if has_encoder else None,
    )


def _encoder(config: HubConfig, text: HubConfig) -> PatchEncoder:
    vision = resolved_part(config, "vision_config")
    vision.refuse_unless("attention_bias", False)
    num_heads, head_dim = vision.required_int("num_attention_heads"), vision.required_int("head_dim")
    vision.refuse_unless("num_key_value_heads", num_heads)
    if head_dim % 4:
        raise config.refuse(f"head_dim = {head_dim} of vision_config has no quarters.")
    norm = Norm(vision.number("rms_norm_eps"), is_scaled_wide=True)
    plain = replace(norm, has_weight=False)
    attention = Attention(num_heads, num_heads, head_dim, scale=1.0, rotation=None, qk_norm=norm, value_norm=plain)
    feed_forward = gemma_feed_forward(vision, "hidden_activation")
    layer = Layer(attention, feed_forward, norm, norm, norm, norm)
    merge_size, num_positions = (
        vision.required_int("pooling_kernel_size"),
        vision.required_int("position_embedding_size"),
    )
    usual_rows = config.required_int("vision_soft_tokens_per_image")
    if merge_size * usual_rows > num_positions:
        raise config.refuse(
            f"position_embedding_size = {num_positions} of vision_config is less than the {merge_size * usual_rows} "
            f"patches of an edge that pictures of vision_soft_tokens_per_image = {usual_rows} may have."
        )
    return PatchEncoder(
        patch_size=vision.required_int("patch_size"),
        merge_size=merge_size,
        hidden_size=vision.required_int("hidden_size"),
        layers=(layer,) * vision.required_int("num_hidden_layers"),
        theta=read_theta(vision, THETA),
        turns=PatchTurns.APART,
        has_channels_last=True,
        has_limits=vision.flag("use_clipped_linears"),
        num_positions=num_positions,
        has_position_tables=True,
        rows=Pooler(plain, PROJECTION, STANDARD if vision.flag("standardize") else None),
        names=VISION_NAMES,
        token_id=config.required_int("image_token_id"),
        usual_rows=usual_rows,
        sees_itself=text.values.get("use_bidirectional_attention") == "vision",
        around=(config.required_int("boi_token_id"), config.required_int("eoi_token_id")),
    )


def _read_text(config: HubConfig) -> DecoderConfig:
    config.refuse_unless("use_bidirectional_attention", "vision")  # of the rows of pictures
    config.refuse_unless("attention_bias", False)
    norm = Norm(config.number("rms_norm_eps"), is_scaled_wide=True)
    kinds = _read_kinds(config)
    first_sharing = _read_first_sharing(config, kinds)
    feed_forward = gemma_feed_forward(config, "hidden_activation")
    is_wider = config.flag("use_double_wide_mlp")
    wider = replace(feed_forward, size=2 * feed_forward.size) if is_wider else feed_forward
    beside = _read_experts(config, norm) if config.flag("enable_moe_block") else None
    embeddings = _read_per_layer_embeddings(config, norm)
    layer_input = embeddings and PerLayerInput(embeddings.size, feed_forward.activation, norm)
    layers = []
    for number, kind in enumerate(kinds):
        attention, shares = _read_attention(config, norm, kind, number), number >= first_sharing
        layer = Layer(
            replace(attention, shares_cache=True, value_norm=None) if shares else attention,
            wider if shares else feed_forward,
            *(norm, norm, norm, norm),
            beside=beside,
            per_layer_input=layer_input,
            has_output_scale=True,
        )
        layers.append(layer)
    return read_decoder(
        config,
        layers,
        TEXT_NAMES,
        final_norm=norm,
        has_tied_embeddings=config.flag("tie_word_embeddings"),
        embed_multiplier=config.required_int("hidden_size") ** 0.5,
        logits_soft_cap=config.optional_number("final_logit_softcapping"),
        per_layer_embeddings=embeddings,
    )


def _read_per_layer_embeddings(config: HubConfig, norm: Norm) -> PerLayerEmbeddings | None:
    if not config.values.get("hidden_size_per_layer_input"):
        return None
    vocab_size, padding = config.required_int("vocab_size_per_layer_input"), config.values.get("pad_token_id")
    # Only of a model that sees: for others the token has no meaning.
    media_token_id = padding if type(padding) is int and 0 <= padding < vocab_size else 0
    return PerLayerEmbeddings(vocab_size, config.required_int("hidden_size_per_layer_input"), norm, media_token_id)


def _read_first_sharing(config: HubConfig, kinds: list[str]) -> int:
    """Return the first layer that reads the keys and values of an earlier one; the number of layers if none does.

    Raises:
        UnsupportedModel: there is no layer whose keys and values a later one of its kind could read.
    """
    num_sharing = config.values.get("num_kv_shared_layers") or 0
    if not isinstance(num_sharing, int) or not 0 <= num_sharing < len(kinds):
        raise config.refuse(f"num_kv_shared_layers is {num_sharing!r}, which must be from 0 to {len(kinds) - 1}.")
    first = len(kinds) - num_sharing
    missing = set(kinds[first:]) - set(kinds[:first])
    if missing:
        raise config.refuse(
            f"num_kv_shared_layers is {num_sharing}, but none of the {first} layers before has the kind "
            f"{', '.join(sorted(missing))}, so that there are no keys and values for those that share them."
        )
    return first


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
        looks_ahead=kind == SLIDING,
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
