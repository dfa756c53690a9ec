"""Bamba: layers of Mamba-2 between some that attend, with half of each head rotated.

Source: transformers `models/bamba/modeling_bamba.py`.
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import DecoderConfig, Layer
from service.models.families import mamba2
from service.models.families.llama import NAMES, read_attention, read_decoder, read_feed_forward, read_norm

BAMBA_NAMES = replace(
    NAMES,
    final_norm="final_layernorm",
    mlp_norm="pre_ff_layernorm",
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
    **mamba2.NAMES,
)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `bamba`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    num_layers, norm = config.required_int("num_hidden_layers"), read_norm(config)
    attending = config.values["attn_layer_indices"]
    if not isinstance(attending, list) or not attending or not set(range(num_layers)).issuperset(attending):
        raise config.refuse(
            f"attn_layer_indices must hold numbers of layers below {num_layers}, which attend; without one a model is "
            "not served."
        )
    has_bias = config.flag("attention_bias")
    attention = read_attention(config, has_bias=has_bias, has_output_bias=has_bias)
    feed_forward = read_feed_forward(config, has_bias=config.flag("mlp_bias"))
    width = config.required_int("mamba_expand") * config.required_int("hidden_size")
    state = mamba2.read_state_space(config, width, norm)
    layers = [
        Layer(attention, feed_forward, norm, norm)
        if number in attending
        else Layer(None, feed_forward, norm, norm, state=state)
        for number in range(num_layers)
    ]
    return read_decoder(config, layers, BAMBA_NAMES, final_norm=norm)
