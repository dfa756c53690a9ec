"""Snowball, which Levanter exports as `grug_moe` of version 1.

It has experts, gated norms, gates of heads and exclusive attention.
Source: Levanter `models/snowball.py`.
"""

from collections.abc import Mapping
from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import (
    Activation,
    Attention,
    DecoderConfig,
    Experts,
    FeedForward,
    Layer,
    Norm,
    RouterBias,
    RouterScores,
)
from service.models.families.llama import NAMES as LLAMA_NAMES
from service.models.rope import RopeConfig

NAMES = replace(
    LLAMA_NAMES,
    embed_norm="model.embed_norm",
    head_gates="self_attn.attn_gate",
    router="mlp.router",
    expert_gate_up=("mlp.experts.gate_proj.weight", "mlp.experts.up_proj.weight"),
    expert_down="mlp.experts.down_proj.weight",
    gate_up=("shared_expert.gate_proj", "shared_expert.up_proj"),
    down="shared_expert.down_proj",
    norm_gates=(
        ("model.embed_norm", "model.embed_gated_norm"),
        ("input_layernorm", "attn_gated_norm"),
        ("post_attention_layernorm", "mlp_gated_norm"),
        ("norm", "final_gated_norm"),
    ),
)
GATE_RANK, QK_EPS, WEIGHT_SUM = 128, 1e-6, 2.5
FULL_INTERVAL = 4  # of as many layers, the last attends to the whole text
# The keys of a run, where they differ from those of its export.
RUN_KEYS = {
    "hidden_size": "hidden_dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "max_position_embeddings": "max_seq_len",
    "rms_norm_eps": "layer_norm_eps",
    "num_experts_per_tok": "num_experts_per_token",
    "moe_intermediate_size": "intermediate_dim",
    "shared_expert_intermediate_size": "shared_expert_intermediate_dim",
}


def read_snowball(config: HubConfig, theta: float, keys: Mapping[str, str]) -> DecoderConfig:
    """Read a model from a run, or from its export.

    Args:
        config: the configuration.
        theta: the base of the rotation.
        keys: what the configuration calls the keys of an export.

    Raises:
        UnsupportedModel: a value is missing or malformed, or contradicts another.
    """

    def integer(key: str) -> int:
        return config.required_int(keys.get(key, key))

    num_heads, num_kv_heads, num_layers = (
        integer(f"num_{name}") for name in ("attention_heads", "key_value_heads", "hidden_layers")
    )
    if num_heads % num_kv_heads:
        raise config.refuse(f"{num_heads} attention heads are not a multiple of {num_kv_heads} key-value heads.")
    hidden_size = integer("hidden_size")
    if config.values.get("head_dim") is None and hidden_size % num_heads:
        raise config.refuse(f"the hidden size of {hidden_size} is not a multiple of {num_heads} attention heads.")
    head_dim = config.optional_int("head_dim", hidden_size // num_heads)
    if head_dim % 4:
        raise config.refuse(f"head_dim = {head_dim} is not a multiple of 4: pairs of its first half are rotated.")
    norm = Norm(config.number(keys.get("rms_norm_eps", "rms_norm_eps"), 1e-5), is_scaled_wide=True, gate_rank=GATE_RANK)
    full = Attention(
        num_heads,
        num_kv_heads,
        head_dim,
        scale=head_dim**-0.5 * config.number("qk_mult", 1.0),
        rotation=None,
        qk_norm=Norm(QK_EPS, has_weight=False),
        has_gates=True,
        is_exclusive=True,
    )
    sliding = replace(full, rotation=RopeConfig(theta, head_dim // 2), window=config.required_int("sliding_window"))
    experts = Experts(
        config.required_int("num_experts"),
        config.at_most(keys.get("num_experts_per_tok", "num_experts_per_tok"), "num_experts"),
        FeedForward(integer("moe_intermediate_size"), Activation.SILU),
        RouterScores.SIGMOID,
        weight_sum=WEIGHT_SUM,
        bias=RouterBias.CHOICE,
        shared=FeedForward(integer("shared_expert_intermediate_size"), Activation.SILU),
    )
    is_full = [(layer + 1) % FULL_INTERVAL == 0 or layer == num_layers - 1 for layer in range(num_layers)]
    return DecoderConfig(
        model_type=str(config.values.get("model_type") or config.values["type"]),
        vocab_size=config.required_int("vocab_size"),
        hidden_size=hidden_size,
        context_len=integer("max_position_embeddings"),
        layers=tuple(Layer(full if sees_all else sliding, experts, norm, norm) for sees_all in is_full),
        final_norm=norm,
        has_tied_embeddings=False,
        names=NAMES,
        embed_norm=norm,
    )
