"""Qwen3-VL, dense: a Qwen3 whose positions are of time, row and column, and that takes pictures of any shape.

Source: Bai et al. 2025, arXiv:2511.21631; https://huggingface.co/docs/transformers/model_doc/qwen3_vl (Qwen3VLConfig).
"""

import math
from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import (
    Activation,
    Attention,
    DecoderConfig,
    FeedForward,
    Layer,
    Merger,
    Norm,
    NormKind,
    PatchEncoder,
    TensorNames,
)
from service.models.families import llama, qwen3
from service.models.families.hub_keys import resolved_part
from service.models.quantization_config import read_layer_storage

TEXT_NAMES = replace(qwen3.QK_NORM_NAMES, prefix="model.language_model.")
VISION_NAMES = TensorNames(
    prefix="model.visual.",
    layers="blocks",
    embed="patch_embed.proj",
    positions="pos_embed",
    final_norm="",
    attention_norm="norm1",
    qkv=("attn.qkv",),
    output="attn.proj",
    mlp_norm="norm2",
    gate_up=("mlp.linear_fc1",),
    down="mlp.linear_fc2",
)
MERGER = {"up": "linear_fc1", "down": "linear_fc2"}
NORM = Norm(1e-6, NormKind.LAYER, is_scaled_wide=True, has_bias=True)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `qwen3_vl`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    text = resolved_part(config, "text_config")
    has_bias = text.flag("attention_bias")
    attention = llama.read_attention(text, has_bias=has_bias, has_output_bias=has_bias, qk_norm=llama.read_norm(text))
    layers = llama.pre_norm_layers(text, attention, llama.read_feed_forward(text))
    decoder = llama.read_decoder(
        text,
        layers,
        TEXT_NAMES,
        has_tied_embeddings=config.flag("tie_word_embeddings"),
        image_encoder=read_encoder(config),
    )
    return replace(decoder, model_type="qwen3_vl", layer_storage=read_layer_storage(config.uri, config.values))


def read_encoder(config: HubConfig) -> PatchEncoder:
    """Read the `vision_config` of a file, which is that of Qwen 3.5, too, but for the layers after which rows are made.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    vision, hidden = resolved_part(config, "vision_config"), resolved_part(config, "text_config")
    vision.refuse_unless("in_channels", 3)
    vision.refuse_unless("out_hidden_size", hidden.required_int("hidden_size"))
    hidden_size, num_heads = vision.required_int("hidden_size"), vision.required_int("num_heads")
    num_positions = math.isqrt(vision.required_int("num_position_embeddings"))
    if hidden_size % (4 * num_heads):
        raise config.refuse(f"hidden_size = {hidden_size} has no quarters for num_heads = {num_heads}.")
    head_dim = hidden_size // num_heads
    attention = Attention(
        num_heads,
        num_heads,
        head_dim,
        scale=head_dim**-0.5,
        rotation=None,
        has_bias=True,
        has_output_bias=True,
    )
    activation = vision.activation("hidden_act")
    feed_forward = FeedForward(vision.required_int("intermediate_size"), activation, is_gated=False, has_bias=True)
    num_layers = vision.required_int("depth")
    named = vision.values.get("deepstack_visual_indexes", [])
    taps = tuple(named) if isinstance(named, list) else ()
    are_layers = isinstance(named, list) and all(type(tap) is int and 0 <= tap < num_layers for tap in taps)
    if not are_layers or sorted(set(taps)) != list(taps):
        raise config.refuse(f"deepstack_visual_indexes = {named!r} are not layers in order.")
    return PatchEncoder(
        patch_size=vision.required_int("patch_size"),
        merge_size=vision.required_int("spatial_merge_size"),
        num_frames=vision.required_int("temporal_patch_size"),
        hidden_size=hidden_size,
        layers=(Layer(attention, feed_forward, NORM, NORM),) * num_layers,
        num_positions=num_positions,
        has_patch_bias=True,
        theta=read_theta(vision),
        rows=Merger(NORM, Activation.GELU, has_bias=True, prefix="model.visual.merger.", **MERGER),
        taps=taps,
        names=VISION_NAMES,
        token_id=config.required_int("image_token_id"),
        has_grid=True,
    )


def read_theta(vision: HubConfig, default: float = 10_000.0) -> float:
    """Return the base of an encoder's rotation by row and column; the default is that of its family.

    Raises:
        UnsupportedModel: it is malformed, or the rotation is another one.
    """
    rope = vision.part("rope_parameters")
    rope.refuse_unless("rope_type", "axial", "default")
    return rope.number("rope_theta", vision.number("rope_theta", default))
