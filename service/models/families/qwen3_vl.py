"""Qwen3-VL, dense: a Qwen3 whose positions are of time, row and column, and that sees pictures of any shape.

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
    Norm,
    NormKind,
    PatchEncoder,
    TensorNames,
)
from service.models.families import llama, qwen3
from service.models.families.qwen2 import with_qwen_windows
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
NORM = Norm(1e-6, NormKind.LAYER, is_scaled_wide=True, has_bias=True)
THETA = 10_000.0  # of the encoder's rotation
TAPS = (5, 11, 17)  # unless the file names others


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `qwen3_vl`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    text = config.part("text_config")
    attention = llama.read_attention(text, default_head_dim=128, default_theta=500_000.0, qk_norm=llama.read_norm(text))
    if attention.rotation is None or not attention.rotation.sections:
        raise config.refuse("text_config has no mrope_section in its rope_scaling.")
    layers = llama.pre_norm_layers(text, with_qwen_windows(text, attention), llama.read_feed_forward(text))
    decoder = llama.read_decoder(
        text, layers, TEXT_NAMES, has_tied_embeddings=config.flag("tie_word_embeddings"), image_encoder=_encoder(config)
    )
    return replace(decoder, model_type="qwen3_vl", layer_storage=read_layer_storage(config.uri, config.values))


def _encoder(config: HubConfig) -> PatchEncoder:
    vision = config.part("vision_config")
    vision.refuse_unless("in_channels", 3)
    vision.refuse_unless("out_hidden_size", config.part("text_config").required_int("hidden_size"))
    hidden_size, num_heads = vision.optional_int("hidden_size", 1152), vision.optional_int("num_heads", 16)
    num_positions = math.isqrt(vision.optional_int("num_position_embeddings", 2304))
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
    activation = vision.activation("hidden_act", Activation.GELU_TANH)
    feed_forward = FeedForward(
        vision.optional_int("intermediate_size", 4304), activation, is_gated=False, has_bias=True
    )
    num_layers = vision.optional_int("depth", 27)
    taps = tuple(vision.values.get("deepstack_visual_indexes") or TAPS)
    if sorted(set(taps)) != list(taps) or not all(type(tap) is int and 0 <= tap < num_layers for tap in taps):
        raise config.refuse(f"deepstack_visual_indexes = {list(taps)!r} are not layers in order.")
    return PatchEncoder(
        patch_size=vision.optional_int("patch_size", 16),
        merge_size=vision.optional_int("spatial_merge_size", 2),
        num_frames=vision.optional_int("temporal_patch_size", 2),
        hidden_size=hidden_size,
        layers=(Layer(attention, feed_forward, NORM, NORM),) * num_layers,
        num_positions=num_positions,
        theta=THETA,
        norm=NORM,
        taps=taps,
        names=VISION_NAMES,
        token_id=config.required_int("image_token_id"),
    )
