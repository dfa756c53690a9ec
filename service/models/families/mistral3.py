"""Mistral 3: Mistral or Ministral 3, which sees pictures of any shape through a Pixtral.

A file without `vision_config` is that of a text model.

Source: transformers `models/mistral3/configuration_mistral3.py`, `models/mistral3/modeling_mistral3.py`,
`models/pixtral/configuration_pixtral.py`, `models/pixtral/image_processing_pil_pixtral.py`.
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import (
    Attention,
    DecoderConfig,
    FeedForward,
    Layer,
    Merger,
    Norm,
    PatchEncoder,
    PatchTurns,
    TensorNames,
)
from service.models.families import mistral
from service.models.families.hub_keys import resolved, resolved_part
from service.models.families.llama import NAMES, read_norm
from service.models.families.qwen3_vl import read_theta
from service.models.quantization_config import read_layer_storage

# As files of today name the tensors, without `model.`; see `bare_name` for others.
TEXT_NAMES = replace(NAMES, prefix="language_model.")
VISION_NAMES = TensorNames(
    prefix="vision_tower.",
    layers="transformer.layers",
    embed="patch_conv",
    embed_norm="ln_pre",
    final_norm="",
    attention_norm="attention_norm",
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    output="attention.o_proj",
    mlp_norm="ffn_norm",
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
)
PROJECTOR = {
    "prefix": "multi_modal_projector.",
    "first": "patch_merger.merging_layer",
    "up": "linear_1",
    "down": "linear_2",
}
TEXT_TYPES = ("mistral", "ministral", "ministral3")  # the first where a file names none
NORM = Norm(1e-5)
# Of CLIP: red, green and blue.
PIXEL_MEAN, PIXEL_DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `mistral3`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    text = config.part("text_config")
    text.refuse_unless("model_type", *TEXT_TYPES)
    text = resolved(text, text.values.get("model_type") or TEXT_TYPES[0])
    decoder = mistral.read_config(text)
    return replace(
        decoder,
        model_type="mistral3",
        names=TEXT_NAMES,
        has_tied_embeddings=config.flag("tie_word_embeddings"),
        layer_storage=read_layer_storage(config.uri, config.values),
        image_encoder=None if config.values.get("vision_config") is None else _encoder(config, text),
    )


def _encoder(config: HubConfig, text: HubConfig) -> PatchEncoder:
    vision = resolved_part(config, "vision_config")
    vision.refuse_unless("num_channels", 3)
    config.refuse_unless("vision_feature_layer", -1)
    hidden_size, num_heads = vision.required_int("hidden_size"), vision.required_int("num_attention_heads")
    if hidden_size % (4 * num_heads):
        raise config.refuse(
            f"hidden_size = {hidden_size} of vision_config has no quarters for num_attention_heads = {num_heads}."
        )
    head_dim = hidden_size // num_heads
    vision.refuse_unless("head_dim", head_dim)
    attention = Attention(num_heads, num_heads, head_dim, scale=head_dim**-0.5, rotation=None)
    feed_forward = FeedForward(vision.required_int("intermediate_size"), vision.activation("hidden_act"))
    return PatchEncoder(
        patch_size=vision.required_int("patch_size"),
        merge_size=config.required_int("spatial_merge_size"),
        hidden_size=hidden_size,
        layers=(Layer(attention, feed_forward, NORM, NORM),) * vision.required_int("num_hidden_layers"),
        theta=read_theta(vision),
        turns=PatchTurns.ALTERNATING,
        first_norm=NORM,
        rows=Merger(
            read_norm(text),
            config.activation("projector_hidden_act"),
            config.flag("multimodal_projector_bias"),
            **PROJECTOR,
        ),
        pixel_mean=PIXEL_MEAN,
        pixel_deviation=PIXEL_DEVIATION,
        names=VISION_NAMES,
        token_id=config.required_int("image_token_index"),
        has_lines=True,
    )
