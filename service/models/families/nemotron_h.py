"""Nemotron-H and Nemotron 3: each layer is one branch, Mamba-2, attention without positions, a feed-forward or experts.

Source: transformers `models/nemotron_h/modeling_nemotron_h.py`, `models/nemotron_h/configuration_nemotron_h.py`.
"""

from collections.abc import Sequence
from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import (
    DecoderConfig,
    Experts,
    FeedForward,
    Latent,
    Layer,
    Norm,
    RouterBias,
    RouterScores,
    StateSpace,
    TensorNames,
)
from service.models.families.layer_kinds import FORMER_KINDS, FULL, LINEAR, tell_state_dtype
from service.models.families.llama import read_attention, read_decoder
from service.models.families.mamba2 import read_groups, read_width

MLP, EXPERTS = "mlp", "moe"  # further kinds of layers
PATTERN = {"M": LINEAR, "*": FULL, "-": MLP, "E": EXPERTS}  # of a file that writes a letter for each layer
# Names of keys that override those of today.
FORMER = {"mamba_n_groups": "n_groups", "mamba_d_conv": "conv_kernel", "mamba_dt_min": "time_step_min"}
FORMER_FLAG = ("mamba_conv_bias", "use_conv_bias")
WEIGHT_SUM_EPS = 1e-20  # Source: transformers `modeling_nemotron_h.py` (NemotronHTopkRouter)
NAMES = TensorNames(
    prefix="backbone.",
    embed="embeddings",
    final_norm="norm_f",
    attention_norm="norm",
    qkv=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
    output="mixer.o_proj",
    mlp_norm="norm",
    gate_up=("mixer.up_proj",),
    down="mixer.down_proj",
    router="mixer.gate",
    router_bias="mixer.gate.e_score_correction_bias",
    expert_gate_up=("mixer.experts.{}.up_proj",),
    expert_down="mixer.experts.{}.down_proj",
    shared_gate_up=("mixer.shared_experts.up_proj",),
    shared_down="mixer.shared_experts.down_proj",
    latent=("mixer.fc1_latent_proj", "mixer.fc2_latent_proj"),
    state_in=("mixer.in_proj",),
    state_convolution=("mixer.conv1d",),
    state_decay="mixer.A_log",
    state_decay_bias="mixer.dt_bias",
    state_skip="mixer.D",
    state_norm="mixer.norm",
    state_out="mixer.out_proj",
)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `nemotron_h`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    given = {key: config.values[name] for name, key in (*FORMER.items(), FORMER_FLAG) if name in config.values}
    config = replace(config, values={**config.values, **given})
    norm = Norm(config.number("layer_norm_epsilon"), is_scaled_wide=True)
    kinds = _read_kinds(config)
    if FULL not in kinds:
        raise config.refuse(f"layers_block_type names no {FULL}, without which a model is not served.")
    by_kind = {kind: _layer(config, kind, norm) for kind in dict.fromkeys(kinds)}
    return read_decoder(config, [by_kind[kind] for kind in kinds], NAMES, final_norm=norm)


def _read_kinds(config: HubConfig) -> Sequence[str]:
    """Return the kind of each layer, however many `num_hidden_layers` says there are."""
    named, pattern = config.values["layers_block_type"], config.values["hybrid_override_pattern"]
    if named is None and isinstance(pattern, str):
        named = [PATTERN.get(letter, letter) for letter in pattern]
    kinds = [FORMER_KINDS.get(str(kind), str(kind)) for kind in named] if isinstance(named, list) else []
    if not kinds or not set(kinds).issubset(PATTERN.values()):
        key = "layers_block_type" if pattern is None else "hybrid_override_pattern"
        letters = ", ".join(f"{kind} ({letter})" for letter, kind in PATTERN.items())
        raise config.refuse(f"{key} must name one of {letters} for each layer.")
    return kinds


def _layer(config: HubConfig, kind: str, norm: Norm) -> Layer:
    match kind:
        case "full_attention":
            return Layer(read_attention(config, rotation=None), None, norm, None)
        case "linear_attention":
            return Layer(None, None, norm, None, state=_read_state(config))
        case "mlp":
            return Layer(None, _read_feed_forward(config, "intermediate_size"), None, norm)
        case _:
            return Layer(None, _read_experts(config), None, norm)


def _read_state(config: HubConfig) -> StateSpace:
    config.refuse_unless("mamba_hidden_act", "silu")
    tell_state_dtype(config)
    heads, has_bias = config.required_int("mamba_num_heads"), config.flag("use_bias")
    least = config.values["time_step_min"]
    return StateSpace(
        heads,
        read_groups(config, "n_groups", heads),
        config.required_int("mamba_head_dim"),
        config.required_int("ssm_state_size"),
        read_width(config, "conv_kernel"),
        norm=Norm(config.number("layer_norm_epsilon")),
        has_bias=has_bias,
        has_output_bias=has_bias,
        has_taps_bias=config.flag("use_conv_bias"),
        least_step=0.0 if least == 0 else config.number("time_step_min"),
    )


def _read_feed_forward(config: HubConfig, size: str) -> FeedForward:
    activation = config.activation("mlp_hidden_act")
    return FeedForward(config.required_int(size), activation, is_gated=False, has_bias=config.flag("mlp_bias"))


def _read_experts(config: HubConfig) -> Experts:
    size = config.int_or_none("moe_latent_size")
    if config.required_int("n_group") != config.required_int("topk_group"):
        raise config.refuse("n_group and topk_group differ: experts that are chosen by group are not served.")
    return Experts(
        config.required_int("n_routed_experts"),
        config.at_most("num_experts_per_tok", "n_routed_experts"),
        replace(_read_feed_forward(config, "moe_intermediate_size"), has_bias=False),
        scores=RouterScores.SIGMOID,
        weight_sum=1.0 if config.flag("norm_topk_prob") else None,
        weight_sum_eps=WEIGHT_SUM_EPS,
        weight_multiplier=config.number("routed_scaling_factor"),
        bias=RouterBias.CHOICE_BY_SCORE,
        latent=None if size is None else Latent(size, config.flag("mlp_bias")),
        shared=_read_feed_forward(config, "moe_shared_expert_intermediate_size"),
    )
