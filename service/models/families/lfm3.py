"""LFM3: short convolutions between layers of attention with a window and without, and norms on both sides of branches.

Source: transformers `models/lfm3/modeling_lfm3.py`.
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import Activation, DecoderConfig, FeedForward, Layer, Norm
from service.models.families.layer_kinds import CONVOLUTION, FULL, SLIDING, read_layer_kinds
from service.models.families.lfm2 import NAMES as FORMER_NAMES
from service.models.families.lfm2 import read_convolution
from service.models.families.llama import read_attention, read_decoder
from service.models.families.rope_parameters import read_ropes

NAMES = replace(
    FORMER_NAMES,
    output="self_attn.o_proj",
    query_norm="self_attn.q_norm",
    key_norm="self_attn.k_norm",
    head_gates="self_attn.gate_proj",
    attention_post_norm="post_operator_norm",
    mlp_post_norm="post_ffn_norm",
)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `lfm3`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    norm, has_bias = Norm(config.number("norm_eps")), config.flag("attention_bias")
    has_gates = config.flag("use_attention_gate")
    options = {"has_bias": has_bias, "has_output_bias": has_bias, "qk_norm": norm, "has_gates": has_gates}
    full = read_attention(config, rotation=None, most_gate=1.0, **options)
    ropes = read_ropes(config, head_dim=full.head_dim)
    window = config.int_or_none("sliding_window")
    attentions = {
        FULL: replace(full, rotation=ropes[FULL]),
        SLIDING: replace(full, rotation=ropes[SLIDING], window=window),
    }
    convolution = read_convolution(config)
    feed_forward = FeedForward(config.required_int("intermediate_size"), Activation.SILU)
    post_norm = norm if config.flag("use_sandwich_norm") else None
    usual = [
        FULL if layer % 4 == 2 else SLIDING if layer % 4 == 0 and layer > 0 else CONVOLUTION
        for layer in range(config.required_int("num_hidden_layers"))
    ]
    kinds = read_layer_kinds(config, usual, (FULL, SLIDING, CONVOLUTION))
    if FULL not in kinds:
        raise config.refuse(f"layer_types names no {FULL}, without which a model is not served.")
    layers = [
        Layer(
            attentions.get(kind),
            feed_forward,
            *(norm, norm, post_norm, post_norm),
            state=convolution if kind == CONVOLUTION else None,
        )
        for kind in kinds
    ]
    return read_decoder(config, layers, NAMES, final_norm=norm)
