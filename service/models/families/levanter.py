"""Runs of Levanter, as Levanter computes them: the `model:` part of a run, with all its defaults written out.

A run is not its export to Hugging Face: Levanter has options that no export can say, and computes some models otherwise
than transformers does. Each function says what Levanter's forward does with the keys of one type.
Source: https://github.com/marin-community/levanter (`models/*.py`, `layers/attention.py`, `layers/rotary.py`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from service.models.config import ACTIVATIONS, HubConfig
from service.models.description import (
    Activation,
    Attention,
    DecoderConfig,
    Experts,
    FeedForward,
    Layer,
    Norm,
    NormKind,
    TensorNames,
)
from service.models.families.apertus import NAMES as APERTUS_NAMES
from service.models.families.gemma2 import FOUR_NORM_NAMES
from service.models.families.gpt2 import NAMES as GPT2_NAMES
from service.models.families.hero import read_hero
from service.models.families.layer_kinds import FULL, LINEAR, SLIDING, read_layer_kinds
from service.models.families.olmo2 import POST_NORM_NAMES
from service.models.families.qwen3 import QK_NORM_NAMES
from service.models.families.qwen3_5 import NAMES as QWEN_3_5_NAMES
from service.models.families.qwen3_5 import TEXT_PREFIX, read_delta
from service.models.families.qwen3_moe import QWEN_MOE_NAMES
from service.models.families.snowball import RUN_KEYS, read_snowball
from service.models.rope import RopeConfig

# With the names of the norms that only Levanter's Llama has.
LLAMA_NAMES = replace(
    QK_NORM_NAMES,
    attention_post_norm="post_attn_layernorm",
    mlp_post_norm="post_mlp_layernorm",
    embed_norm="norm",
)
QWEN_EXPERTS = replace(QWEN_MOE_NAMES, embed_norm="norm")
# With the rows of a key head together.
QWEN_35_NAMES = replace(
    QWEN_3_5_NAMES,
    prefix=TEXT_PREFIX,
    state_in=("linear_attn.in_proj_qkvz",),
    state_gates=("linear_attn.in_proj_ba",),
)
MIXTRAL_NAMES = replace(
    LLAMA_NAMES,
    router="mlp.gate",
    expert_gate_up=("mlp.experts.gate_up_proj",),
    expert_down="mlp.experts.down_proj",
    gate_up=("shared_mlp.gate_proj", "shared_mlp.up_proj"),
    down="shared_mlp.down_proj",
)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read the model of a run.

    Raises:
        UnsupportedModel: its type, or a feature of it, is not served, or a value is malformed.
    """
    kind = str(config.values.get("type"))
    if kind not in READERS:
        raise config.refuse(f"Levanter's {kind!r} is not served. Served: {', '.join(READERS)}.")
    return READERS[kind](config)


def _llama(config: HubConfig) -> DecoderConfig:
    return _llama_like(config, qk_norm=_norm(config) if config.flag("use_qk_norm") else None)


def _mistral(config: HubConfig) -> DecoderConfig:
    """Without a window, whatever `sliding_window` says, and with a head of its own."""
    layer = _llama_like(config, has_equal_heads=True)
    return replace(layer, has_tied_embeddings=False)


def _qwen(config: HubConfig) -> DecoderConfig:
    """With a bias of queries, keys and values; texts longer than the window are refused."""
    decoder = _llama_like(config, has_equal_heads=True, has_bias=True, has_output_bias=False, is_hybrid=False)
    if config.flag("use_sliding_window") and config.values.get("sliding_window") is not None:
        longest = min(decoder.context_len, config.required_int("sliding_window"))
        return replace(decoder, context_len=longest)
    return decoder


def _qwen3(config: HubConfig) -> DecoderConfig:
    return _llama_like(config, qk_norm=_norm(config))


def _mixtral(config: HubConfig) -> DecoderConfig:
    """Without a window, whatever `sliding_window` says; any number of shared experts is one of the usual size."""
    config.refuse_unless("use_bias", False)  # a run does not store the biases of experts
    expert = _feed_forward(config)
    experts = Experts(
        config.required_int("n_routed_experts"),
        config.at_most("num_experts_per_tok", "n_routed_experts"),
        expert,
        shared=expert if config.values.get("n_shared_experts") else None,
    )
    decoder = _with_experts(_llama_like(config, has_equal_heads=True, is_hybrid=False), experts, MIXTRAL_NAMES)
    norm = replace(decoder.final_norm, has_weight=True)
    return replace(
        decoder, layers=tuple(replace(layer, attention_norm=norm, mlp_norm=norm) for layer in decoder.layers)
    )


def _qwen3_moe(config: HubConfig) -> DecoderConfig:
    experts = Experts(
        config.required_int("num_experts"),
        config.at_most("num_experts_per_tok", "num_experts"),
        FeedForward(config.required_int("moe_intermediate_dim"), _activation(config)),
        weight_sum=1.0 if config.flag("norm_topk_prob", default=True) else None,
    )
    qk_norm = _norm(config) if config.flag("use_qk_norm") else None
    return _with_experts(_llama_like(config, is_hybrid=False, qk_norm=qk_norm), experts, QWEN_EXPERTS)


def _snowball(config: HubConfig) -> DecoderConfig:
    """With a rotation whose `scaling_factor` changes nothing."""
    rope = config.values.get("rope")
    if not isinstance(rope, Mapping):
        raise config.refuse(f"rope = {rope!r} is not served; only a mapping with theta.")
    return read_snowball(config, float(rope["theta"]), RUN_KEYS)


def _hero(config: HubConfig) -> DecoderConfig:
    """With a rotation whose `scaling_factor` changes nothing."""
    rope = config.values.get("rope")
    if not isinstance(rope, Mapping):
        raise config.refuse(f"rope = {rope!r} is not served; only a mapping with theta.")
    return read_hero(config, float(rope["theta"]), RUN_KEYS)


def _qwen35(config: HubConfig) -> DecoderConfig:
    """With a rotation of a part of each head, unless it is one of those of whole heads."""
    norm, interval = _gemma_norm(config), config.required_int("full_attention_interval")
    rule = [LINEAR if (layer + 1) % interval else FULL for layer in range(config.required_int("num_layers"))]
    attention = _attention(config, qk_norm=norm, has_wide_gates=True)
    delta, feed_forward = read_delta(config, "layer_norm_epsilon"), _feed_forward(config)
    layers = [
        Layer(attention, feed_forward, norm, norm)
        if kind == FULL
        else Layer(None, feed_forward, norm, norm, state=delta)
        for kind in read_layer_kinds(config, rule, (FULL, LINEAR))
    ]
    return _decoder(config, layers, QWEN_35_NAMES, norm)


def _with_experts(decoder: DecoderConfig, experts: Experts, names: TensorNames) -> DecoderConfig:
    layers = tuple(replace(layer, feed_forward=experts) for layer in decoder.layers)
    return replace(decoder, layers=layers, names=names)


def _gemma(config: HubConfig) -> DecoderConfig:
    layer = Layer(
        _attention(config, has_equal_heads=True), _feed_forward(config), _gemma_norm(config), _gemma_norm(config)
    )
    return _gemma_of(config, layer, LLAMA_NAMES)


def _gemma2(config: HubConfig) -> DecoderConfig:
    """Without windows, without a cap on logits, and with the usual scale of scores."""
    qk_norm = _gemma_norm(config) if config.flag("use_qk_norm") else None
    return _four_norms(config, qk_norm, soft_cap=config.optional_number("attn_logit_softcapping"))


def _gemma3(config: HubConfig) -> DecoderConfig:
    """Without windows, without caps, with one rotation, and with the usual scale of scores."""
    return _four_norms(config, _gemma_norm(config), soft_cap=None)


def _olmo2(config: HubConfig) -> DecoderConfig:
    return _post_norms(config, (None,) * config.required_int("num_layers"), has_equal_heads=True)


def _olmo3(config: HubConfig) -> DecoderConfig:
    rule = [SLIDING if (layer + 1) % 4 else FULL for layer in range(config.required_int("num_layers"))]
    window, kinds = config.optional_int("sliding_window", 4096), read_layer_kinds(config, rule)
    return _post_norms(config, tuple(window if kind == SLIDING else None for kind in kinds), has_equal_heads=False)


def _apertus(config: HubConfig) -> DecoderConfig:
    norm = _norm(config)
    attention = _attention(config, qk_norm=norm if config.flag("use_qk_norm") else None)
    size = config.required_int("intermediate_dim")
    layer = Layer(attention, FeedForward(size, Activation.XIELU, is_gated=False), norm, norm)
    names = replace(APERTUS_NAMES, embed_norm=LLAMA_NAMES.embed_norm)
    return _decoder(config, [layer] * config.required_int("num_layers"), names, norm)


def _gpt2(config: HubConfig) -> DecoderConfig:
    has_bias, hidden_size = config.flag("use_bias", default=True), config.required_int("hidden_dim")
    norm = Norm(config.number("layer_norm_epsilon", 1e-5), NormKind.LAYER, is_scaled_wide=True, has_bias=has_bias)
    feed_forward = FeedForward(
        hidden_size * config.optional_int("mlp_scale", 4), _activation(config), is_gated=False, has_bias=has_bias
    )
    num_heads = config.required_int("num_heads")
    attention = Attention(
        num_heads,
        num_heads,
        _equal_heads(config),
        scale=_equal_heads(config) ** -0.5,
        rotation=None,
        has_bias=has_bias,
        has_output_bias=has_bias,
    )
    is_scaled_by_layer = config.flag("scale_attn_by_inverse_layer_idx")
    layers = [
        Layer(
            replace(attention, scale=attention.scale / (number + 1 if is_scaled_by_layer else 1)),
            feed_forward,
            norm,
            norm,
        )
        for number in range(config.required_int("num_layers"))
    ]
    num_positions = config.required_int("max_seq_len")
    return replace(_decoder(config, layers, GPT2_NAMES, norm), has_tied_embeddings=True, num_positions=num_positions)


def _llama_like(
    config: HubConfig, *, is_hybrid: bool = True, has_equal_heads: bool = False, **options: Any
) -> DecoderConfig:
    norm = _norm(config)
    post_norm = norm if is_hybrid and config.flag("hybrid_norm") else None
    attention = _attention(config, has_equal_heads=has_equal_heads, **options)
    layer = Layer(attention, _feed_forward(config), norm, norm, post_norm, post_norm)
    return _decoder(config, [layer] * config.required_int("num_layers"), LLAMA_NAMES, norm)


def _four_norms(config: HubConfig, qk_norm: Norm | None, *, soft_cap: float | None) -> DecoderConfig:
    norm = _gemma_norm(config)
    attention = _attention(config, has_equal_heads=True, qk_norm=qk_norm, soft_cap=soft_cap)
    layer = Layer(attention, _feed_forward(config), norm, norm, norm, norm)
    names = replace(FOUR_NORM_NAMES, query_norm=LLAMA_NAMES.query_norm, key_norm=LLAMA_NAMES.key_norm)
    return _gemma_of(config, layer, replace(names, embed_norm=LLAMA_NAMES.embed_norm))


def _gemma_of(config: HubConfig, layer: Layer, names: TensorNames) -> DecoderConfig:
    decoder = _decoder(config, [layer] * config.required_int("num_layers"), names, _gemma_norm(config))
    return replace(decoder, embed_multiplier=config.required_int("hidden_dim") ** 0.5)


def _post_norms(config: HubConfig, windows: tuple[int | None, ...], *, has_equal_heads: bool) -> DecoderConfig:
    norm, has_bias = _norm(config), config.flag("attention_bias")
    attention = _attention(
        config,
        has_equal_heads=has_equal_heads,
        has_bias=has_bias,
        has_output_bias=has_bias,
        qk_norm=norm,
        is_qk_norm_whole=True,
    )
    feed_forward = _feed_forward(config)
    layers = [Layer(replace(attention, window=window), feed_forward, None, None, norm, norm) for window in windows]
    return _decoder(config, layers, POST_NORM_NAMES, norm)


def _decoder(config: HubConfig, layers: list[Layer], names: TensorNames, norm: Norm) -> DecoderConfig:
    return DecoderConfig(
        model_type=str(config.values["type"]),
        vocab_size=config.required_int("vocab_size"),
        hidden_size=config.required_int("hidden_dim"),
        context_len=config.required_int("max_seq_len"),
        layers=tuple(layers),
        final_norm=norm,
        has_tied_embeddings=config.flag("tie_word_embeddings"),
        names=names,
        embed_norm=norm if config.flag("input_embedding_norm") else None,
    )


def _attention(config: HubConfig, *, has_equal_heads: bool = False, **options: Any) -> Attention:
    """Read the heads; those of some types have equal parts of the hidden size, whatever `head_dim` says."""
    num_heads = config.required_int("num_heads")
    num_kv_heads = config.optional_int("num_kv_heads", num_heads)
    if num_heads % num_kv_heads:
        raise config.refuse(f"num_heads = {num_heads} is not a multiple of num_kv_heads = {num_kv_heads}.")
    has_width = not has_equal_heads and config.values.get("head_dim") is not None
    head_dim = config.required_int("head_dim") if has_width else _equal_heads(config)
    has_bias = config.flag("use_bias")
    given = {"scale": head_dim**-0.5, "has_bias": has_bias, "has_output_bias": has_bias} | options
    return Attention(num_heads, num_kv_heads, head_dim, rotation=_rotation(config, head_dim), **given)


def _equal_heads(config: HubConfig) -> int:
    hidden_size, num_heads = config.required_int("hidden_dim"), config.required_int("num_heads")
    if hidden_size % num_heads:
        raise config.refuse(f"hidden_dim = {hidden_size} is not a multiple of num_heads = {num_heads}.")
    return hidden_size // num_heads


def _feed_forward(config: HubConfig) -> FeedForward:
    return FeedForward(config.required_int("intermediate_dim"), _activation(config), has_bias=config.flag("use_bias"))


def _activation(config: HubConfig) -> Activation:
    name = config.values.get("activation_function")
    if name not in ACTIVATIONS:
        raise config.refuse(f"activation_function = {name!r} is not served; only {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def _norm(config: HubConfig) -> Norm:
    return Norm(
        config.number("layer_norm_epsilon", 1e-5),
        has_weight=config.flag("use_layer_norm_weight", default=True),
        has_bias=config.flag("use_bias"),
    )


def _gemma_norm(config: HubConfig) -> Norm:
    return Norm(config.number("layer_norm_epsilon", 1e-5), is_plus_one=True, is_scaled_wide=True)


def _rotation(config: HubConfig, head_dim: int) -> RopeConfig | None:
    rope = config.values.get("rope")
    if rope is None:
        return None
    if isinstance(rope, Mapping) and rope.get("partial_rotary_factor") is not None:
        return _partial_rotation(config, rope, head_dim)
    if not isinstance(rope, Mapping) or rope.get("type") not in ROTATIONS:
        raise config.refuse(f"rope = {rope!r} is not served; only those of type {', '.join(ROTATIONS)}.")
    if head_dim % 2:
        raise config.refuse(f"rope rotates pairs of dimensions, and the heads have {head_dim}.")
    return ROTATIONS[rope["type"]](rope, head_dim)


def _plain_rotation(rope: Mapping[str, Any], head_dim: int) -> RopeConfig:
    factor = float(rope.get("factor", 1.0))
    if factor == 1:
        return RopeConfig(float(rope["theta"]), head_dim)
    return RopeConfig(float(rope["theta"]), head_dim, "linear", factor)


def _partial_rotation(config: HubConfig, rope: Mapping[str, Any], head_dim: int) -> RopeConfig:
    rotary_dim = int(head_dim * float(rope["partial_rotary_factor"]))
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise config.refuse(f"rope rotates pairs of dimensions, and {rotary_dim} of a head's {head_dim} are not pairs.")
    return RopeConfig(float(rope["theta"]), rotary_dim)


def _llama3_rotation(rope: Mapping[str, Any], head_dim: int) -> RopeConfig:
    return RopeConfig(
        float(rope["theta"]),
        head_dim,
        "llama3",
        float(rope["factor"]),
        original_context_len=int(rope["original_max_position_embeddings"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
    )


def _yarn_rotation(rope: Mapping[str, Any], head_dim: int) -> RopeConfig:
    """Return Levanter's YaRN, whose ramp ends at other dimensions than that of transformers."""
    theta, factor, context = float(rope["theta"]), float(rope["factor"]), rope["original_max_position_embeddings"]

    def dimension(num_rotations: float) -> float:
        return head_dim * math.log(context / (num_rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(dimension(float(rope["beta_fast"]))), 0)
    high = min(math.ceil(dimension(float(rope["beta_slow"]))), head_dim // 2 - 1)
    ramps = [min(max((pair - low) / max(high - low, 1), 0.0), 1.0) for pair in range(head_dim // 2)]
    factors = tuple(1 / (ramp / factor + 1 - ramp) for ramp in ramps)
    temperature = 1.0 if factor <= 1 else 0.1 * float(rope["mscale"]) * math.log(factor) + 1.0
    return RopeConfig(theta, head_dim, "longrope", factors=factors, attention_factor=temperature)


ROTATIONS: Mapping[str, Callable[[Mapping[str, Any], int], RopeConfig]] = {
    "default": _plain_rotation,
    "linear": _plain_rotation,
    "llama3": _llama3_rotation,
    "yarn": _yarn_rotation,
}
READERS: Mapping[str, Callable[[HubConfig], DecoderConfig]] = {
    "apertus": _apertus,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gpt2": _gpt2,
    "hero": _hero,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "qwen": _qwen,
    "qwen35": _qwen35,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "snowball": _snowball,
}
