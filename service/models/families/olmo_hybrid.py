"""OLMo Hybrid: layers of Gated DeltaNet with norms before their branches, and of attention with norms after them.

Source: transformers `models/olmo_hybrid/modeling_olmo_hybrid.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import DecoderConfig, GatedDelta, Layer, Norm
from service.models.families.layer_kinds import FULL, LINEAR, read_layer_kinds
from service.models.families.llama import read_attention, read_decoder, read_feed_forward
from service.models.families.olmo2 import POST_NORM_NAMES
from service.models.families.qwen3_5 import read_delta

NAMES = replace(
    POST_NORM_NAMES,
    attention_norm="attention_layer_norm",
    mlp_norm="feedforward_layer_norm",
    # transformers 5.24 renames the norm after attention when it saves a model; and what it has in memory.
    also=(
        ("post_attention_layernorm", "feedforward_layer_norm"),
        ("feedforward_layer_norm", "post_attention_layernorm"),
        ("attention_layer_norm", "input_layernorm"),
    ),
    state_in=("linear_attn.q_proj", "linear_attn.k_proj", "linear_attn.v_proj", "linear_attn.g_proj"),
    state_gates=("linear_attn.b_proj", "linear_attn.a_proj"),
    state_convolution=("linear_attn.q_conv1d", "linear_attn.k_conv1d", "linear_attn.v_conv1d"),
    state_decay="linear_attn.A_log",
    state_decay_bias="linear_attn.dt_bias",
    state_norm="linear_attn.o_norm",
    state_out="linear_attn.o_proj",
)
STATE_NORM_EPS = 1e-5  # whatever the file says. Source: transformers (OlmoHybridGatedDeltaNet)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `olmo_hybrid`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    norm, has_bias = Norm(config.number("rms_norm_eps"), is_scaled_wide=True), config.flag("attention_bias")
    options = {"has_bias": has_bias, "has_output_bias": has_bias, "qk_norm": norm, "is_qk_norm_whole": True}
    if not _is_rotated(config):
        options["rotation"] = None
    attention, feed_forward = read_attention(config, **options), read_feed_forward(config)
    config.refuse_unless("hidden_act", "silu")
    delta = _read_delta(config)
    kinds = read_layer_kinds(config, _usual_kinds(config), (FULL, LINEAR))
    if FULL not in kinds:
        raise config.refuse(f"layer_types names no {FULL}, without which a model is not served.")
    layers = [
        Layer(attention, feed_forward, None, None, norm, norm)
        if kind == FULL
        else Layer(None, feed_forward, norm, norm, state=delta)
        for kind in kinds
    ]
    return read_decoder(config, layers, NAMES, final_norm=norm)


def _is_rotated(config: HubConfig) -> bool:
    """Return whether positions rotate queries and keys: not where the file says that the base is null.

    Source: transformers `modeling_olmo_hybrid.py` (OlmoHybridModel)
    """
    given = config.values.get("rope_scaling") or config.values.get("rope_parameters")
    return not isinstance(given, Mapping) or "rope_theta" not in given or given["rope_theta"] is not None


def _read_delta(config: HubConfig) -> GatedDelta:
    num_heads = config.required_int("num_attention_heads")
    keys = config.optional_int("linear_num_key_heads", num_heads)
    key_dim = config.optional_int("linear_key_head_dim", int(0.75 * config.required_int("hidden_size") / keys))
    usual = {
        "linear_num_key_heads": keys,
        "linear_num_value_heads": num_heads,
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": 2 * key_dim,
    }
    delta = read_delta(config.with_defaults(usual))
    share = 2.0 if config.flag("linear_allow_neg_eigval") else 1.0
    return replace(delta, norm=Norm(STATE_NORM_EPS), most_share=share)


def _usual_kinds(config: HubConfig) -> Sequence[str]:
    """Return the kinds of layers of a file without `layer_types`: each fourth attends, or else the last."""
    kinds = [FULL if layer % 4 == 3 else LINEAR for layer in range(config.required_int("num_hidden_layers"))]
    return kinds if FULL in kinds else [*kinds[:-1], FULL]
