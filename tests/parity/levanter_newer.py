"""Hero and Qwen 3.5 as Levanter's source has them, put together of the parts that its release has.

The layout of weights is that of a run: projections `[in, out]`, the layers of Hero stacked, heads in axes of their own.
Source: Levanter `models/hero_model.py` (HeroTransformer), `models/qwen35.py` (Qwen35Transformer).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis
from jaxtyping import Array, Float, Int
from levanter.grug.attention import AttentionMask, RotaryConfig, align_kv_heads, apply_rotary_embedding, attention
from levanter.grug.grug_moe import moe_mlp
from levanter.layers.gated_deltanet import GatedDeltaNet, GatedDeltaNetConfig
from levanter.models.gemma import GemmaNormConfig
from levanter.models.snowball import GatedNorm, RMSNorm, rms_norm

from service.checkpoint.levanter_unreleased import DEFAULTS, named_tensors
from tests.parity.family_cases import draw

GATE_RANK = 128
type Tree = Mapping[str, Any]  # arrays by their paths in a run, below `model/`


class NeedsExplicitAxes:
    """What a configuration says of the mesh that Hero's parts need."""

    requires_explicit_mesh_axes = True


def drawn_run(
    run: Mapping[str, Any], vocab_size: int, model_type: str
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Draw the arrays of a run; return them by their paths and by their names in its export.

    Args:
        run: the `model:` part of its configuration.
        vocab_size: the number of token ids.
        model_type: of the export, by which tensors are drawn.
    """
    shapes = hero_shapes if run["type"] == "hero" else qwen35_shapes
    tree = {path: np.zeros(shape, np.float32) for path, shape in shapes(run, vocab_size).items()}
    named = named_tensors(run["type"], tree)
    for name, array in named.items():
        array[...] = draw(model_type, name, array.shape)
    return tree, named


def hero_shapes(run: Mapping[str, Any], vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array of a run."""
    run = {**DEFAULTS["hero"], **run}
    layers, embed, heads, dim = run["num_layers"], run["hidden_dim"], run["num_heads"], run["head_dim"]
    experts, inner, stored = run["num_experts"], run["intermediate_dim"], run["num_kv_heads"] * run["head_dim"]
    latent, width, shared = run["latent_dim"], run["sconv_kernel"], run["shared_expert_intermediate_dim"]
    gate = {"w_down": (embed, GATE_RANK), "w_up": (GATE_RANK, embed)}
    whole = {
        "token_embed": (vocab_size, embed),
        "output_proj": (embed, vocab_size),
        **{f"{norm}_norm/weight": (embed,) for norm in ("embed", "final")},
        **{f"{norm}_gated_norm/{name}": shape for norm in ("embed", "final") for name, shape in gate.items()},
    }
    block: dict[str, tuple[int, ...]] = {
        **{f"rms_{branch}/weight": (embed,) for branch in ("attn", "mlp")},
        **{f"{branch}_gated_norm/{name}": shape for branch in ("attn", "mlp") for name, shape in gate.items()},
        "attn/w_q": (embed, heads * dim),
        "attn/w_k": (embed, stored),
        "attn/w_v": (embed, stored),
        "attn/w_o": (heads * dim, embed),
        "attn/attn_gate": (embed, heads),
        "mlp/router": (embed, experts),
        "mlp/router_bias": (experts,),
        **{f"mlp/expert_mlp/{name}": (experts, latent or embed, inner) for name in ("w_gate", "w_up")},
        "mlp/expert_mlp/w_down": (experts, inner, latent or embed),
    }
    if latent is not None:
        block |= {"mlp/w_latent_down": (embed, latent), "mlp/w_latent_up": (latent, embed)}
        block["mlp/latent_norm/weight"] = (latent,)
    for number in range(run["num_shared_experts"] if shared else 0):
        block |= {f"shared/{number}/{name}": (embed, shared) for name in ("w_gate", "w_up")}
        block[f"shared/{number}/w_down"] = (shared, embed)
    sites = {"k": ("attn/sconv_k", stored), "attn": ("sconv_attn", embed), "mlp": ("sconv_mlp", embed)}
    for site in run["sconv_sites"] if run["sconv"] else ():
        name, channels = sites[site]
        block[f"{name}/weight"] = (width, channels)
    stacked = {f"stacked_blocks/stacked/{path}": (layers, *shape) for path, shape in block.items()}
    return {f"transformer/{path}": shape for path, shape in {**whole, **stacked}.items()}


def hero_logits(run: Mapping[str, Any], tree: Tree, token_ids: np.ndarray) -> np.ndarray:
    """Return the logits of a text, [token, vocab]."""
    run = {**DEFAULTS["hero"], **run}
    arrays = {path.removeprefix("transformer/"): jnp.asarray(array) for path, array in tree.items()}
    num_layers, eps = run["num_layers"], run["layer_norm_eps"]

    def gated_norm(own: Tree, norm: str, gate: str, x: Float[Array, "one token embed"]) -> Array:
        normal = RMSNorm(own[f"{norm}/weight"], eps)(x)
        return GatedNorm(own[f"{gate}/w_down"], own[f"{gate}/w_up"])(normal)

    hidden = gated_norm(arrays, "embed_norm", "embed_gated_norm", arrays["token_embed"][token_ids][None])
    for layer in range(num_layers):
        prefix = "stacked_blocks/stacked/"
        own = {path.removeprefix(prefix): array[layer] for path, array in arrays.items() if path.startswith(prefix)}
        is_full = (layer + 1) % run["global_every"] == 0 or layer == num_layers - 1
        x = gated_norm(own, "rms_attn", "attn_gated_norm", hidden)
        hidden = hidden + _convolved(own, "sconv_attn", _hero_attention(run, own, x, is_full=is_full))
        x = gated_norm(own, "rms_mlp", "mlp_gated_norm", hidden)
        hidden = hidden + _convolved(own, "sconv_mlp", _hero_experts(run, own, x))
    hidden = gated_norm(arrays, "final_norm", "final_gated_norm", hidden)
    return np.asarray((hidden @ arrays["output_proj"])[0])


def _convolved(own: Tree, name: str, x: Float[Array, "one token channel"]) -> Float[Array, "one token channel"]:
    """Source: Levanter `kernels/pallas/short_conv.py`: `out[t] = sum of weight[lag] * x[t - lag]`."""
    weight = own.get(f"{name}/weight")
    if weight is None:
        return x
    shifted = [jnp.pad(x, ((0, 0), (lag, 0), (0, 0)))[:, : x.shape[1]] for lag in range(len(weight))]
    return sum((taps * before for taps, before in zip(weight, shifted, strict=True)), jnp.zeros_like(x))


def _hero_attention(
    run: Mapping[str, Any], own: Tree, x: Float[Array, "one token embed"], *, is_full: bool
) -> Float[Array, "one token embed"]:
    dim, heads, stored = run["head_dim"], run["num_heads"], run["num_kv_heads"]

    def by_head(flat: Array) -> Array:
        return flat.reshape(*flat.shape[:2], -1, dim)

    query, value = by_head(x @ own["attn/w_q"]), by_head(x @ own["attn/w_v"])
    key = by_head(_convolved(own, "attn/sconv_k", x @ own["attn/w_k"]))
    used = run["global_kv_heads" if is_full else "local_kv_heads"]
    if used is not None and used != stored:
        key, value = (align_kv_heads(part[:, :, :used], num_q_heads=stored) for part in (key, value))
    query, key = rms_norm(query), rms_norm(key)
    if not is_full:
        rotate = _rotated_adjacent if run["rope_fused"] else _rotated_halves
        query, key = rotate(query, key, run["rope"]["theta"])
    window = None if is_full else run["sliding_window"]
    mask = AttentionMask(is_causal=True, sliding_window=window)
    out = attention(query * run["qk_mult"], key, value, mask, implementation="reference")
    aligned = align_kv_heads(value, num_q_heads=heads)
    dot, length = (jnp.sum(other * aligned, axis=-1, keepdims=True) for other in (out, aligned))
    out = out - dot / (length + 1e-6) * aligned
    out = out * (2 * jax.nn.sigmoid(x @ own["attn/attn_gate"]))[..., None]
    return out.reshape(*x.shape[:2], heads * dim) @ own["attn/w_o"]


def _rotated_adjacent(query: Array, key: Array, theta: float) -> tuple[Array, Array]:
    """Source: Levanter `models/hero_model.py` (_apply_rotary_embedding_fused)."""
    num_pairs, num_tokens = query.shape[-1] // 4, query.shape[1]
    frequencies = 1 / theta ** (np.arange(num_pairs, dtype=np.float32) / num_pairs)
    angles = jnp.asarray(np.arange(num_tokens, dtype=np.float32)[:, None] * frequencies)[:, None]

    def rotated(x: Array) -> Array:
        pairs = x[..., : 2 * num_pairs].reshape(*x.shape[:-1], num_pairs, 2)
        first, second = pairs[..., 0], pairs[..., 1]
        turned = jnp.stack(
            [first * jnp.cos(angles) - second * jnp.sin(angles), second * jnp.cos(angles) + first * jnp.sin(angles)], -1
        )
        return jnp.concatenate([turned.reshape(*x.shape[:-1], -1), x[..., 2 * num_pairs :]], axis=-1)

    return rotated(query), rotated(key)


def _rotated_halves(query: Array, key: Array, theta: float) -> tuple[Array, Array]:
    half = query.shape[-1] // 2
    turned = apply_rotary_embedding(
        query[..., :half], key[..., :half], seq_len=query.shape[1], head_dim=half, rope=RotaryConfig(theta=theta)
    )
    whole = zip(turned, (query, key), strict=True)
    query, key = (jnp.concatenate([part, own[..., half:]], axis=-1) for part, own in whole)
    return query, key


def _hero_experts(
    run: Mapping[str, Any], own: Tree, x: Float[Array, "one token embed"]
) -> Float[Array, "one token embed"]:
    tokens = x[0]
    scores = tokens @ own["mlp/router"]
    _, chosen = jax.lax.top_k(scores + own["mlp/router_bias"], run["num_experts_per_token"] + 1)
    chosen = chosen[:, :-1]
    factors = jax.nn.sigmoid(jnp.take_along_axis(scores, chosen, axis=-1))
    factors = factors * (2.5 / (jnp.sum(factors, axis=-1, keepdims=True) + 1e-9))
    read = tokens
    if run["latent_dim"] is not None:
        read = RMSNorm(own["mlp/latent_norm/weight"], run["layer_norm_eps"])(tokens @ own["mlp/w_latent_down"])
    up = jnp.concatenate([own["mlp/expert_mlp/w_gate"], own["mlp/expert_mlp/w_up"]], axis=-1)
    mixed = moe_mlp(read, chosen.astype(jnp.int32), factors, up, own["mlp/expert_mlp/w_down"])
    assert isinstance(mixed, jax.Array)
    if run["latent_dim"] is not None:
        mixed = mixed @ own["mlp/w_latent_up"]
    for number in range(run["num_shared_experts"] if run["shared_expert_intermediate_dim"] else 0):
        gate, plain, down = (own[f"shared/{number}/{name}"] for name in ("w_gate", "w_up", "w_down"))
        mixed = mixed + (jax.nn.silu(tokens @ gate) * (tokens @ plain)) @ down
    return mixed[None]


def qwen35_shapes(run: Mapping[str, Any], vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array of a run."""
    run = {**DEFAULTS["qwen35"], **run}
    embed, inner, heads, kv, dim = (
        run[key] for key in ("hidden_dim", "intermediate_dim", "num_heads", "num_kv_heads", "head_dim")
    )
    delta = _delta_config(run)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings/token_embeddings/weight": (vocab_size, embed),
        "transformer/norm/weight": (embed,),
    }
    if not run["tie_word_embeddings"]:
        shapes["lm_head/weight"] = (vocab_size, embed)
    of_attention = {
        "self_attn/q_proj/weight": (kv, heads // kv, 2 * dim, embed),
        "self_attn/k_proj/weight": (kv, dim, embed),
        "self_attn/v_proj/weight": (kv, dim, embed),
        "self_attn/o_proj/weight": (embed, heads, dim),
        "self_attn/q_norm/weight": (dim,),
        "self_attn/k_norm/weight": (dim,),
    }
    of_delta = {
        "linear_attn/in_proj_qkvz/weight": (delta.mix_qkvz_axis.size, embed),
        "linear_attn/in_proj_ba/weight": (delta.ba_axis.size, embed),
        "linear_attn/conv_weight": (2 * delta.key_dim + delta.value_dim, delta.conv_kernel_size),
        "linear_attn/A_log": (delta.num_v_heads,),
        "linear_attn/dt_bias": (delta.num_v_heads,),
        "linear_attn/o_norm/weight": (delta.head_v_dim,),
        "linear_attn/out_proj/weight": (embed, delta.num_v_heads, delta.head_v_dim),
    }
    of_both: dict[str, tuple[int, ...]] = {
        "input_layernorm/weight": (embed,),
        "post_attention_layernorm/weight": (embed,),
        "mlp/gate_proj/weight": (inner, embed),
        "mlp/up_proj/weight": (inner, embed),
        "mlp/down_proj/weight": (embed, inner),
    }
    for layer in range(run["num_layers"]):
        own = of_both | (of_attention if _attends(run, layer) else of_delta)
        shapes |= {f"transformer/_layers/blocks/{layer}/{path}": shape for path, shape in own.items()}
    return shapes


def qwen35_logits(run: Mapping[str, Any], tree: Tree, token_ids: Int[np.ndarray, " token"]) -> np.ndarray:
    """Return the logits of a text, [token, vocab]."""
    run = {**DEFAULTS["qwen35"], **run}
    arrays = {path: jnp.asarray(array) for path, array in tree.items()}
    embed = Axis("embed", run["hidden_dim"])

    def norm(weight: Array, x: Array) -> Array:
        axes = (*(f"axis{axis}" for axis in range(x.ndim - 1)), Axis("normal", x.shape[-1]))
        build = GemmaNormConfig(eps=run["layer_norm_epsilon"]).build(axes[-1])
        return dataclasses.replace(build, weight=hax.named(weight, axes[-1]))(hax.named(x, axes)).array

    hidden = arrays["embeddings/token_embeddings/weight"][token_ids]
    for layer in range(run["num_layers"]):
        prefix = f"transformer/_layers/blocks/{layer}/"
        own = {path.removeprefix(prefix): array for path, array in arrays.items() if path.startswith(prefix)}
        x = norm(own["input_layernorm/weight"], hidden)
        if _attends(run, layer):
            hidden = hidden + _qwen35_attention(run, own, x, norm)
        else:
            net = _delta_net(run, own)
            read, _ = net(hax.named(x[None], ("batch", "position", embed)), inference=False, chunk_size=64)
            hidden = hidden + read.rearrange(("batch", "position", "embed")).array[0]
        x = norm(own["post_attention_layernorm/weight"], hidden)
        gate, up, down = (own[f"mlp/{name}_proj/weight"].T for name in ("gate", "up", "down"))
        hidden = hidden + (jax.nn.silu(x @ gate) * (x @ up)) @ down
    hidden = norm(arrays["transformer/norm/weight"], hidden)
    head = arrays.get("lm_head/weight", arrays["embeddings/token_embeddings/weight"])
    return np.asarray(hidden @ head.T)


def _attends(run: Mapping[str, Any], layer: int) -> bool:
    if run["layer_types"] is not None:
        return bool(run["layer_types"][layer] == "full_attention")
    return (layer + 1) % run["full_attention_interval"] == 0


def _qwen35_attention(run: Mapping[str, Any], own: Tree, x: Array, norm: Any) -> Array:
    dim = run["head_dim"]
    packed = jnp.einsum("te,kgpe->tkgp", x, own["self_attn/q_proj/weight"])
    query, gate = norm(own["self_attn/q_norm/weight"], packed[..., :dim]), packed[..., dim:]
    key, value = (jnp.einsum("te,kde->tkd", x, own[f"self_attn/{name}_proj/weight"]) for name in "kv")
    key = norm(own["self_attn/k_norm/weight"], key)
    turned = int(dim * run["rope"]["partial_rotary_factor"])
    flat = query.reshape(len(x), -1, dim)
    rope = RotaryConfig(theta=run["rope"]["theta"])
    rotated = apply_rotary_embedding(
        flat[None, ..., :turned], key[None, ..., :turned], seq_len=len(x), head_dim=turned, rope=rope
    )
    flat, key = (
        jnp.concatenate([part, whole[None, ..., turned:]], axis=-1)
        for part, whole in zip(rotated, (flat, key), strict=True)
    )
    out = attention(flat, key, value[None], AttentionMask.causal(), implementation="reference")[0]
    out = out * jax.nn.sigmoid(gate.reshape(out.shape))
    return jnp.einsum("thd,ehd->te", out, own["self_attn/o_proj/weight"])


def _delta_config(run: Mapping[str, Any]) -> GatedDeltaNetConfig:
    return GatedDeltaNetConfig(
        Embed=Axis("embed", run["hidden_dim"]),
        num_k_heads=run["linear_num_key_heads"],
        num_v_heads=run["linear_num_value_heads"],
        head_k_dim=run["linear_key_head_dim"],
        head_v_dim=run["linear_value_head_dim"],
        conv_kernel_size=run["linear_conv_kernel_dim"],
        rms_norm_eps=run["layer_norm_epsilon"],
    )


def _delta_net(run: Mapping[str, Any], own: Tree) -> GatedDeltaNet:
    net = GatedDeltaNet.init(_delta_config(run), key=jax.random.PRNGKey(0))
    names = {"conv_weight": "conv_weight", "A_log": "A_log", "dt_bias": "dt_bias"}
    names |= {f"{name}.weight": f"{name}/weight" for name in ("in_proj_qkvz", "in_proj_ba", "o_norm", "out_proj")}
    return net.load_state_dict({name: own[f"linear_attn/{path}"] for name, path in names.items()})
