"""Idefics3 and SmolVLM: a Llama that takes square tiles of an image through a SigLIP.

Source: Laurençon et al. 2024, arXiv:2408.12637; Marafioti et al. 2025, arXiv:2504.05299;
https://huggingface.co/docs/transformers/model_doc/idefics3 (Idefics3Config).
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import DecoderConfig, ImageEncoder
from service.models.families import llama, siglip
from service.models.families.hub_keys import resolved_part

TEXT_NAMES = replace(llama.NAMES, prefix="model.text_model.")
VISION_NAMES = replace(siglip.NAMES, prefix="model.vision_model.")
PROJECTION = "model.connector.modality_projection.proj.weight"


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `idefics3` or `smolvlm`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    config.refuse_unless("quantization_config")
    text = resolved_part(config, "text_config")
    text.refuse_unless("quantization_config")
    has_bias = text.flag("attention_bias")
    attention = llama.read_attention(text, has_bias=has_bias, has_output_bias=has_bias)
    layers = llama.pre_norm_layers(text, attention, llama.read_feed_forward(text, has_bias=text.flag("mlp_bias")))
    decoder = llama.read_decoder(
        text, layers, TEXT_NAMES, has_tied_embeddings=config.flag("tie_word_embeddings"), image_encoder=_encoder(config)
    )
    return replace(decoder, model_type=str(config.values["model_type"]))


def _encoder(config: HubConfig) -> ImageEncoder:
    encoder = siglip.read_siglip(
        resolved_part(config, "vision_config"),
        merge_size=config.required_int("scale_factor"),
        names=VISION_NAMES,
        projection=PROJECTION,
        token_id=config.required_int("image_token_id"),
        has_rounded_positions=True,
    )
    if encoder.num_patches == 0 or encoder.num_patches % encoder.merge_size:
        raise config.refuse(
            f"scale_factor = {encoder.merge_size} does not divide the {encoder.num_patches} patches of an edge."
        )
    return encoder
