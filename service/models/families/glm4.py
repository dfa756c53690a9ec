"""GLM-4: Llama with a rotation of neighbouring dimensions in half of each head; of 2025 with norms after branches too.

Source: GLM Team 2024, arXiv:2406.12793; transformers `models/glm/modeling_glm.py`, `models/glm4/modeling_glm4.py`.
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import DecoderConfig
from service.models.families.llama import NAMES, pre_norm_layers, read_attention, read_decoder, read_feed_forward

FUSED_NAMES = replace(NAMES, gate_up=("mlp.gate_up_proj",))
POST_NORM_NAMES = replace(
    FUSED_NAMES, attention_post_norm="post_self_attn_layernorm", mlp_post_norm="post_mlp_layernorm"
)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `glm` or `glm4`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    attention = read_attention(config, has_bias=config.flag("attention_bias"))
    layers = pre_norm_layers(config, attention, read_feed_forward(config))
    if config.values["model_type"] == "glm":
        return read_decoder(config, layers, FUSED_NAMES)
    layers = tuple(
        replace(layer, attention_post_norm=layer.attention_norm, mlp_post_norm=layer.mlp_norm) for layer in layers
    )
    return read_decoder(config, layers, POST_NORM_NAMES)
