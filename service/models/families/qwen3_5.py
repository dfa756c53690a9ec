"""Qwen 3.5 and Qwen3-Next, dense and with experts: three layers of Gated DeltaNet for each that attends.

Qwen 3.5 sees pictures of any shape, as Qwen3-VL does, but adds nothing to the hidden states of layers. A file without
`vision_config` is that of a text model. The layer that predicts further tokens is in `mtp`.
Source: transformers `models/qwen3_5/modeling_qwen3_5.py`, `models/qwen3_5_moe/modeling_qwen3_5_moe.py`,
`models/qwen3_next/modeling_qwen3_next.py`.
"""

from collections.abc import Sequence
from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import (
    Attention,
    DecoderConfig,
    Experts,
    FeedForward,
    GatedDelta,
    Layer,
    Norm,
    PatchEncoder,
    TensorNames,
)
from service.models.families import llama, qwen3_vl
from service.models.families.hub_keys import resolved_part
from service.models.families.layer_kinds import FULL, LINEAR, read_layer_kinds, tell_state_dtype
from service.models.families.qwen3 import QK_NORM_NAMES
from service.models.families.rope_parameters import with_sections
from service.models.quantization_config import read_layer_storage

NAMES = replace(
    QK_NORM_NAMES,
    state_in=("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"),
    state_gates=("linear_attn.in_proj_b", "linear_attn.in_proj_a"),
    state_convolution=("linear_attn.conv1d",),
    state_decay="linear_attn.A_log",
    state_decay_bias="linear_attn.dt_bias",
    state_norm="linear_attn.norm",
    state_out="linear_attn.out_proj",
)
_EXPERTS = {
    "router": "mlp.gate",
    "expert_gate_up": ("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj"),
    "expert_down": "mlp.experts.{}.down_proj",
    "gate_up": ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
    "down": "mlp.shared_expert.down_proj",
    "shared_gate": "mlp.shared_expert_gate",
}
EXPERT_NAMES = replace(NAMES, **_EXPERTS)
# With the rows of a key head together.
NEXT_NAMES = replace(EXPERT_NAMES, state_in=("linear_attn.in_proj_qkvz",), state_gates=("linear_attn.in_proj_ba",))
WHOLE = {"qwen3_5": "text_config", "qwen3_5_moe": "text_config"}  # types with a part for text
TEXT_PREFIX = "model.language_model."
SECTIONS = (11, 11, 10)  # pairs of dimensions that turn by time, row and column, of a file that does not say


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of one of these types.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    model_type = str(config.values["model_type"])
    part = WHOLE.get(model_type)
    text = config if part is None else resolved_part(config, part)
    sees = part is not None and config.values.get("vision_config") is not None
    decoder = _read_text(text, sees=sees)
    if part is None:
        return decoder
    is_tied = config.flag("tie_word_embeddings")
    storage = read_layer_storage(config.uri, config.values)
    names = replace(decoder.names, prefix=TEXT_PREFIX)
    return replace(
        decoder,
        model_type=model_type,
        names=names,
        has_tied_embeddings=is_tied,
        layer_storage=storage,
        image_encoder=_read_encoder(config) if sees else None,
    )


def _read_encoder(config: HubConfig) -> PatchEncoder:
    config.part("vision_config").refuse_unless("deepstack_visual_indexes", [])
    return qwen3_vl.read_encoder(config)


def _read_text(config: HubConfig, *, sees: bool) -> DecoderConfig:
    norm = Norm(config.number("rms_norm_eps"), is_plus_one=True, is_scaled_wide=True)
    config.refuse_unless("hidden_act", "silu")
    config.refuse_unless("attn_output_gate", True)
    has_bias = config.flag("attention_bias")
    attention = llama.read_attention(
        config, has_bias=has_bias, has_output_bias=has_bias, qk_norm=norm, has_wide_gates=True
    )
    if sees and attention.rotation is not None:
        attention = replace(attention, rotation=with_sections(config, attention.rotation, SECTIONS))
    delta = read_delta(config)
    feed_forward, names = _read_feed_forward(config)

    def layer(kind: str) -> Layer:
        mixer: tuple[Attention | None, GatedDelta | None] = (attention, None) if kind == FULL else (None, delta)
        return Layer(mixer[0], feed_forward, norm, norm, state=mixer[1])

    layers = [layer(kind) for kind in read_layer_kinds(config, _usual_kinds(config), (FULL, LINEAR))]
    if all(one.attention is None for one in layers):
        raise config.refuse(f"layer_types names no {FULL}, without which a model is not served.")
    return llama.read_decoder(config, layers, names, final_norm=norm)


def read_delta(config: HubConfig, eps_key: str = "rms_norm_eps") -> GatedDelta:
    """Read the heads of Gated DeltaNet.

    Args:
        config: the configuration.
        eps_key: what it calls that of norms.

    Raises:
        UnsupportedModel: a value is missing, malformed, or contradicts another.
    """
    heads, values = config.required_int("linear_num_key_heads"), config.required_int("linear_num_value_heads")
    if values % heads:
        raise config.refuse(f"linear_num_value_heads = {values} is not a multiple of linear_num_key_heads = {heads}.")
    width = config.required_int("linear_conv_kernel_dim")
    if width < 2:
        raise config.refuse("linear_conv_kernel_dim is 1: a convolution of one tap keeps no state.")
    tell_state_dtype(config)
    return GatedDelta(
        heads,
        values,
        config.required_int("linear_key_head_dim"),
        config.required_int("linear_value_head_dim"),
        width,
        norm=Norm(config.number(eps_key)),
    )


def _read_feed_forward(config: HubConfig) -> tuple[FeedForward | Experts, TensorNames]:
    activation = config.activation("hidden_act")
    if "num_experts" not in config.values:
        return llama.read_feed_forward(config), NAMES
    config.refuse_unless("mlp_only_layers", [])
    config.refuse_unless("decoder_sparse_step", 1)
    experts = Experts(
        config.required_int("num_experts"),
        config.at_most("num_experts_per_tok", "num_experts"),
        FeedForward(config.required_int("moe_intermediate_size"), activation),
        weight_sum=1.0 if config.flag("norm_topk_prob", default=True) else None,
        shared=FeedForward(config.required_int("shared_expert_intermediate_size"), activation),
        has_shared_gate=True,
    )
    return experts, NEXT_NAMES if config.values["model_type"] == "qwen3_next" else EXPERT_NAMES


def _usual_kinds(config: HubConfig) -> Sequence[str]:
    """Return the kinds of layers of a file without `layer_types`."""
    interval = config.optional_int("full_attention_interval", 4)
    return [LINEAR if (number + 1) % interval else FULL for number in range(config.required_int("num_hidden_layers"))]
