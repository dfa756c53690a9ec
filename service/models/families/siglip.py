"""SigLIP's encoder of square pictures, as the configurations of Idefics3 and Gemma 3 describe it.

Source: Zhai et al. 2023, arXiv:2303.15343; transformers `models/siglip/modeling_siglip.py`.
"""

from typing import Any

from service.models.config import HubConfig
from service.models.description import (
    Attention,
    FeedForward,
    ImageEncoder,
    Layer,
    Norm,
    NormKind,
    TensorNames,
)

NAMES = TensorNames(
    prefix="",
    layers="encoder.layers",
    embed="embeddings.patch_embedding",
    positions="embeddings.position_embedding",
    final_norm="post_layernorm",
    attention_norm="layer_norm1",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.out_proj",
    mlp_norm="layer_norm2",
    gate_up=("mlp.fc1",),
    down="mlp.fc2",
)


def read_siglip(vision: HubConfig, **options: Any) -> ImageEncoder:
    """Read a `vision_config` with the defaults of its family; `options` are further fields of the description.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    vision.refuse_unless("num_channels", 3)
    hidden_size, num_heads = vision.required_int("hidden_size"), vision.required_int("num_attention_heads")
    if hidden_size % num_heads:
        raise vision.refuse(f"hidden_size = {hidden_size} is not a multiple of num_attention_heads = {num_heads}.")
    head_dim, norm = hidden_size // num_heads, read_norm(vision)
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
    return ImageEncoder(
        image_size=vision.required_int("image_size"),
        patch_size=vision.required_int("patch_size"),
        hidden_size=hidden_size,
        layers=(Layer(attention, feed_forward, norm, norm),) * vision.required_int("num_hidden_layers"),
        final_norm=norm,
        **options,
    )


def read_norm(vision: HubConfig) -> Norm:
    """Read the norm of all layers."""
    return Norm(vision.number("layer_norm_eps"), NormKind.LAYER, is_scaled_wide=True, has_bias=True)
