"""Gemma 3 with images: its text model takes square pictures through a SigLIP, each as one block of rows.

The rows of a picture attend to each other, in layers with a window too. A picture must not be longer than a window, so
that the window's beginning is no later than the picture's.

Source: Gemma Team 2025, arXiv:2503.19786; transformers `models/gemma3/modeling_gemma3.py` (Gemma3Model).
"""

import math
from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import DecoderConfig, ImageEncoder
from service.models.families import gemma, gemma3_text, siglip
from service.models.families.hub_keys import resolved_part

# As files of today name the tensors, without `model.`; see `bare_name` for others.
TEXT_NAMES = replace(gemma3_text.NAMES, prefix="language_model.")
VISION_NAMES = replace(siglip.NAMES, prefix="vision_tower.")
PROJECTION = "multi_modal_projector.mm_input_projection_weight"
MEAN_NORM = "multi_modal_projector.mm_soft_emb_norm"


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `gemma3`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    config.refuse_unless("quantization_config")
    text = resolved_part(config, "text_config")
    text.refuse_unless("quantization_config")
    text.refuse_unless("final_logit_softcapping")  # which the model with images ignores
    encoder = _encoder(config, text)
    decoder = gemma3_text.read_config(text)
    windows = [attention.window for attention in decoder.attentions if attention.window is not None]
    if encoder.num_rows > min(windows, default=encoder.num_rows):
        raise config.refuse(
            f"sliding_window = {min(windows)} is less than the {encoder.num_rows} tokens of an image, whose first one "
            "would be outside the window of its last."
        )
    is_tied = config.flag("tie_word_embeddings")
    return replace(decoder, model_type="gemma3", names=TEXT_NAMES, has_tied_embeddings=is_tied, image_encoder=encoder)


def _encoder(config: HubConfig, text: HubConfig) -> ImageEncoder:
    vision = resolved_part(config, "vision_config")
    num_rows = config.required_int("mm_tokens_per_image")
    num_patches, edge = vision.required_int("image_size") // vision.required_int("patch_size"), math.isqrt(num_rows)
    if edge**2 != num_rows or num_patches == 0 or num_patches % edge:
        raise config.refuse(
            f"mm_tokens_per_image = {num_rows} is not the square of a divisor of the {num_patches} patches of an edge."
        )
    ids = {name: config.required_int(f"{name}_token_index") for name in ("boi", "eoi", "image")}
    return siglip.read_siglip(
        vision,
        merge_size=num_patches // edge,
        names=VISION_NAMES,
        projection=PROJECTION,
        token_id=ids["image"],
        mean_norm=replace(gemma.gemma_norm(text), eps=siglip.read_norm(vision).eps),
        mean_norm_tensor=MEAN_NORM,
        sees_itself=True,
        around=(ids["boi"], ids["eoi"]),
    )
