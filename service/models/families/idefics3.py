"""Idefics3 and SmolVLM: a Llama that sees square tiles of an image through a SigLIP.

Source: Laurençon et al. 2024, arXiv:2408.12637; Marafioti et al. 2025, arXiv:2504.05299;
https://huggingface.co/docs/transformers/model_doc/idefics3 (Idefics3Config).
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import (
    Activation,
    Attention,
    DecoderConfig,
    FeedForward,
    ImageEncoder,
    Layer,
    Norm,
    NormKind,
    TensorNames,
)
from service.models.families import llama

TEXT_NAMES = replace(llama.NAMES, prefix="model.text_model.")
VISION_NAMES = TensorNames(
    prefix="model.vision_model.",
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
PROJECTION = "model.connector.modality_projection.proj"


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `idefics3` or `smolvlm`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    config.refuse_unless("quantization_config")
    text = config.part("text_config")
    text.refuse_unless("model_type", "llama")  # which is the default
    has_bias = text.flag("attention_bias")
    attention = llama.read_attention(text, has_bias=has_bias, has_output_bias=has_bias)
    layers = llama.pre_norm_layers(text, attention, llama.read_feed_forward(text))
    decoder = llama.read_decoder(
        text, layers, TEXT_NAMES, has_tied_embeddings=config.flag("tie_word_embeddings"), image_encoder=_encoder(config)
    )
    return replace(decoder, model_type=str(config.values["model_type"]))


def _encoder(config: HubConfig) -> ImageEncoder:
    vision = config.part("vision_config")
    vision.refuse_unless("num_channels", 3)
    # What files leave out. Source: transformers `configuration_idefics3.py` (Idefics3VisionConfig)
    hidden_size, num_heads = vision.optional_int("hidden_size", 1152), vision.optional_int("num_attention_heads", 16)
    if hidden_size % num_heads:
        raise config.refuse(f"hidden_size = {hidden_size} is not a multiple of num_attention_heads = {num_heads}.")
    head_dim = hidden_size // num_heads
    norm = Norm(vision.number("layer_norm_eps", 1e-6), NormKind.LAYER, is_scaled_wide=True, has_bias=True)
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
    mlp_size = vision.optional_int("intermediate_size", 3072)
    feed_forward = FeedForward(mlp_size, activation, is_gated=False, has_bias=True)
    encoder = ImageEncoder(
        image_size=vision.optional_int("image_size", 224),
        patch_size=vision.optional_int("patch_size", 32),
        merge_size=config.optional_int("scale_factor", 2),
        hidden_size=hidden_size,
        layers=(Layer(attention, feed_forward, norm, norm),) * vision.optional_int("num_hidden_layers", 12),
        final_norm=norm,
        names=VISION_NAMES,
        projection=PROJECTION,
        token_id=config.required_int("image_token_id"),
    )
    if encoder.num_patches == 0 or encoder.num_patches % encoder.merge_size:
        raise config.refuse(
            f"scale_factor = {encoder.merge_size} does not divide the {encoder.num_patches} patches of an edge."
        )
    return encoder
