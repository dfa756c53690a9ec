"""LFM2, dense and with experts: short convolutions between layers of attention.

Source: Liquid AI 2025, arXiv:2511.23404; transformers `models/lfm2/modeling_lfm2.py`,
`models/lfm2_moe/modeling_lfm2_moe.py`.
"""

from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import (
    Activation,
    DecoderConfig,
    Experts,
    FeedForward,
    Layer,
    Norm,
    RouterBias,
    RouterScores,
    ShortConvolution,
    TensorNames,
)
from service.models.families.layer_kinds import CONVOLUTION, FULL, read_layer_kinds
from service.models.families.llama import read_attention, read_decoder

NAMES = TensorNames(
    prefix="model.",
    embed="embed_tokens",
    final_norm="embedding_norm",
    attention_norm="operator_norm",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.out_proj",
    query_norm="self_attn.q_layernorm",
    key_norm="self_attn.k_layernorm",
    state_in=("conv.in_proj",),
    state_convolution=("conv.conv",),
    state_out="conv.out_proj",
    mlp_norm="ffn_norm",
    gate_up=("feed_forward.w1", "feed_forward.w3"),
    down="feed_forward.w2",
    router="feed_forward.gate",
    router_bias="feed_forward.expert_bias",
    expert_gate_up=("feed_forward.experts.{}.w1", "feed_forward.experts.{}.w3"),
    expert_down="feed_forward.experts.{}.w2",
)
WEIGHT_SUM_EPS = 1e-6  # Source: transformers `modeling_lfm2_moe.py` (Lfm2MoeTopKRouter)


def read_config(config: HubConfig) -> DecoderConfig:
    """Read a `config.json` of model_type `lfm2` or `lfm2_moe`.

    Raises:
        UnsupportedModel: a value is missing, malformed, or asks for a feature that is not served.
    """
    # Source: transformers `configuration_lfm2.py`: names of files before transformers, which override those of today.
    is_dense = config.values["model_type"] == "lfm2"
    former = {"tie_embedding": "tie_word_embeddings", **({"block_ff_dim": "intermediate_size"} if is_dense else {})}
    given = {key: config.values[name] for name, key in former.items() if config.values.get(name) is not None}
    config = replace(config, values={**config.values, **given})
    norm = Norm(config.number("norm_eps"))
    attention = read_attention(config, qk_norm=norm)
    convolution = read_convolution(config)
    kinds = read_layer_kinds(config, _usual_kinds(config), (FULL, CONVOLUTION))
    layers = [
        Layer(attention, feed_forward, norm, norm)
        if kind == FULL
        else Layer(None, feed_forward, norm, norm, state=convolution)
        for kind, feed_forward in zip(kinds, _read_feed_forwards(config), strict=True)
    ]
    if all(layer.attention is None for layer in layers):
        raise config.refuse(f"layer_types names no {FULL}, without which a model is not served.")
    return read_decoder(config, layers, NAMES, final_norm=norm)


def read_convolution(config: HubConfig) -> ShortConvolution:
    """Read the short convolution that layers have.

    Raises:
        UnsupportedModel: a value is missing or malformed, or the convolution keeps no state.
    """
    width = config.required_int("conv_L_cache")
    if width < 2:
        raise config.refuse("conv_L_cache is 1: a convolution of one tap keeps no state.")
    return ShortConvolution(width, config.required_int("hidden_size"), config.flag("conv_bias"))


def _usual_kinds(config: HubConfig) -> list[str]:
    """Return the kinds of layers of a file without `layer_types`."""
    num_layers = config.required_int("num_hidden_layers")
    if config.values["model_type"] == "lfm2_moe":
        if config.values.get("layer_types") is None:
            raise config.refuse("layer_types is missing, and nothing else says which layers attend.")
        return [FULL] * num_layers
    attending = config.values.get("full_attn_idxs")
    if attending is None:
        return [FULL] * num_layers
    if not isinstance(attending, list) or not set(range(num_layers)).issuperset(attending):
        raise config.refuse(f"full_attn_idxs must hold numbers of layers below {num_layers}.")
    return [FULL if number in attending else CONVOLUTION for number in range(num_layers)]


def _read_feed_forwards(config: HubConfig) -> list[FeedForward | Experts]:
    """Read the feed-forward of each layer: some at the beginning are dense, and only in a mixture experts follow."""
    num_layers = config.required_int("num_hidden_layers")
    if config.values["model_type"] == "lfm2":
        return [FeedForward(_feed_forward_size(config), Activation.SILU)] * num_layers
    num_dense = config.values["num_dense_layers"]
    if not isinstance(num_dense, int) or isinstance(num_dense, bool) or not 0 <= num_dense <= num_layers:
        raise config.refuse(f"num_dense_layers is {num_dense!r}, which must be from 0 to {num_layers}.")
    dense = FeedForward(config.required_int("intermediate_size"), Activation.SILU)
    experts = Experts(
        config.required_int("num_experts"),
        config.at_most("num_experts_per_tok", "num_experts"),
        FeedForward(config.required_int("moe_intermediate_size"), Activation.SILU),
        scores=RouterScores.SIGMOID,
        weight_sum=1.0 if config.flag("norm_topk_prob") else None,
        weight_sum_eps=WEIGHT_SUM_EPS,
        weight_multiplier=config.number("routed_scaling_factor"),
        bias=RouterBias.CHOICE_BY_SCORE if config.flag("use_expert_bias") else None,
    )
    return [dense] * num_dense + [experts] * (num_layers - num_dense)


def _feed_forward_size(config: HubConfig) -> int:
    """Return the width of feed-forwards: with `block_auto_adjust_ff_dim`, two thirds of what the file says, and more.

    Source: transformers `modeling_lfm2.py` (Lfm2MLP)
    """
    size = config.required_int("intermediate_size")
    if not config.flag("block_auto_adjust_ff_dim"):
        return size
    size = int(2 * size / 3)
    multiplier = config.optional_number("block_ffn_dim_multiplier")
    if multiplier is None:
        return size
    multiple = config.required_int("block_multiple_of")
    return -(-int(multiplier * size) // multiple) * multiple
