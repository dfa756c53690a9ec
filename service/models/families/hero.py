"""Hero, which Levanter exports as `grug_moe` of version 2: Snowball's layers, whose branches convolve.

Layers that see the whole text use the first heads of the same projections of keys and values, and do not rotate them.
Experts read another width, and several experts of all tokens are one that is as wide as they are together.
Source: Levanter `models/hero.py`, `models/hero_model.py`, `models/hero_serialization.py`.
"""

from collections.abc import Mapping
from dataclasses import replace

from service.models.config import HubConfig
from service.models.description import (
    Activation,
    Attention,
    BranchConvolutions,
    DecoderConfig,
    Experts,
    FeedForward,
    Latent,
    Layer,
    Norm,
    RouterBias,
    RouterScores,
)
from service.models.families.snowball import GATE_RANK, QK_EPS, WEIGHT_SUM
from service.models.families.snowball import NAMES as SNOWBALL_NAMES
from service.models.rope import RopeConfig

NAMES = replace(
    SNOWBALL_NAMES,
    expert_gate_up=("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj"),
    expert_down="mlp.experts.{}.down_proj",
    gate_up=("shared_experts.{}.gate_proj", "shared_experts.{}.up_proj"),
    down="shared_experts.{}.down_proj",
    latent=("mlp.latent_down_proj", "mlp.latent_up_proj"),
    latent_norm="mlp.latent_norm",
    branch_taps=("self_attn.sconv_k", "sconv_attn", "sconv_mlp"),
)
WEIGHT_SUM_EPS = 1e-9
SITES = ("k", "attn", "mlp")  # of convolutions: keys, and what attention and the feed-forward add


def read_hero(config: HubConfig, theta: float, keys: Mapping[str, str]) -> DecoderConfig:
    """Read a model from a run, or from its export.

    Args:
        config: the configuration.
        theta: the base of the rotation.
        keys: what the configuration calls the keys of an export.

    Raises:
        UnsupportedModel: a value is missing or malformed, or contradicts another.
    """
    hidden_size, num_layers = (config.required_int(keys.get(key, key)) for key in ("hidden_size", "num_hidden_layers"))
    norm = Norm(config.number(keys.get("rms_norm_eps", "rms_norm_eps")), is_scaled_wide=True, gate_rank=GATE_RANK)
    sliding, full = _read_attentions(config, theta, keys)
    experts = _read_experts(config, keys, replace(norm, gate_rank=0))
    interval = config.required_int("global_every")

    def layer(number: int) -> Layer:
        attention = full if (number + 1) % interval == 0 or number == num_layers - 1 else sliding
        return Layer(attention, experts, norm, norm, state=_read_convolutions(config, attention, hidden_size))

    return DecoderConfig(
        model_type=str(config.values.get("model_type") or config.values["type"]),
        vocab_size=config.required_int("vocab_size"),
        hidden_size=hidden_size,
        context_len=config.required_int(keys.get("max_position_embeddings", "max_position_embeddings")),
        layers=tuple(layer(number) for number in range(num_layers)),
        final_norm=norm,
        has_tied_embeddings=False,
        names=NAMES,
        embed_norm=norm,
    )


def _read_attentions(config: HubConfig, theta: float, keys: Mapping[str, str]) -> tuple[Attention, Attention]:
    """Return the attention of layers with a window, and that of those without one."""
    num_heads, stored, hidden_size = (
        config.required_int(keys.get(key, key)) for key in ("num_attention_heads", "num_key_value_heads", "hidden_size")
    )
    names = ("local_kv_heads", "global_kv_heads")
    if len({config.values.get(name) is None for name in names}) > 1:
        raise config.refuse(f"{names[0]} and {names[1]} must be given together.")
    used = [config.optional_int(name, stored) for name in names]
    for name, count in zip(names, used, strict=True):
        if stored % count or num_heads % count:
            raise config.refuse(
                f"{name} = {count} does not divide {stored} stored key-value heads and {num_heads} attention heads."
            )
    if max(used) != stored:
        raise config.refuse(f"{stored} key-value heads are stored, and {max(used)} are used at most.")
    if config.values.get("head_dim") is None and hidden_size % num_heads:
        raise config.refuse(f"the hidden size of {hidden_size} is not a multiple of {num_heads} attention heads.")
    head_dim = config.optional_int("head_dim", hidden_size // num_heads)
    if head_dim % 4:
        raise config.refuse(f"head_dim = {head_dim} is not a multiple of 4: pairs of its first half are rotated.")
    both = Attention(
        num_heads,
        stored,
        head_dim,
        scale=head_dim**-0.5 * config.number("qk_mult"),
        rotation=None,
        qk_norm=Norm(QK_EPS, has_weight=False),
        has_gates=True,
        is_exclusive=True,
    )
    sliding, full = (
        replace(both, num_kv_heads=count, stored_kv_heads=None if count == stored else stored) for count in used
    )
    rope = RopeConfig(theta, head_dim // 2, is_adjacent=config.flag("rope_fused"))
    return replace(sliding, rotation=rope, window=config.required_int("sliding_window")), full


def _read_experts(config: HubConfig, keys: Mapping[str, str], norm: Norm) -> Experts:
    def size(key: str) -> int:
        return config.required_int(keys.get(key, key))

    of_shared, num_shared = "shared_expert_intermediate_size", config.required_int("num_shared_experts")
    has_shared = config.values.get(keys.get(of_shared, of_shared)) != 0
    latent = config.int_or_none("latent_dim")
    return Experts(
        config.required_int("num_experts"),
        config.at_most(keys.get("num_experts_per_tok", "num_experts_per_tok"), "num_experts"),
        FeedForward(size("moe_intermediate_size"), Activation.SILU),
        RouterScores.SIGMOID,
        weight_sum=WEIGHT_SUM,
        weight_sum_eps=WEIGHT_SUM_EPS,
        bias=RouterBias.CHOICE,
        shared=FeedForward(num_shared * size(of_shared), Activation.SILU) if has_shared else None,
        num_shared=num_shared,
        latent=None if latent is None else Latent(latent, norm=norm),
    )


def _read_convolutions(config: HubConfig, attention: Attention, hidden_size: int) -> BranchConvolutions | None:
    sites = config.values.get("sconv_sites")
    if not isinstance(sites, list | tuple) or not set(sites) <= set(SITES):
        raise config.refuse(f"sconv_sites is {sites!r}, which should be a list of some of {', '.join(SITES)}.")
    if not config.flag("sconv") or not sites:
        return None
    width = config.required_int("sconv_kernel")
    if width < 2:
        raise config.refuse("sconv_kernel is 1: a convolution of one tap keeps no state.")
    channels = (attention.num_kv_heads * attention.head_dim, hidden_size, hidden_size)
    return BranchConvolutions(
        width, *(size if site in sites else 0 for site, size in zip(SITES, channels, strict=True))
    )
