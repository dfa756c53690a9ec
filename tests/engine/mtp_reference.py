"""A Qwen 3.5 and the layer that predicts its further tokens, over whole texts in numpy, without a cache or a state.

Written from the published computation, and with nothing of the service.
Source: transformers `modeling_qwen3_5.py`; vLLM `models/qwen3_5_mtp.py` and `v1/spec_decode/eagle.py` (positions,
shifted tokens; what the layer gives behind its norm is what it reads next).
"""

from dataclasses import dataclass

import numpy as np

EPS, THETA, UNIT_EPS = 1e-6, 10_000.0, 1e-6


@dataclass(frozen=True)
class Sizes:
    """Of the model, of which every second layer attends."""

    vocab: int = 60
    hidden: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    rotated: int = 4  # dimensions of a head
    mlp: int = 48
    layers: int = 4
    key_heads: int = 2
    value_heads: int = 4
    key_dim: int = 8
    value_dim: int = 12
    taps: int = 4
    is_tied: bool = False
    experts: int = 0  # 0 for a dense model
    experts_of_token: int = 2
    expert_mlp: int = 20
    shared_mlp: int = 24

    @property
    def hub_config(self):
        """The `config.json`."""
        return self._dense | (self._of_experts if self.experts else {})

    @property
    def _of_experts(self):
        return {
            **{"model_type": "qwen3_5_moe_text", "architectures": ["Qwen3_5MoeForCausalLM"]},
            **{"num_experts": self.experts, "num_experts_per_tok": self.experts_of_token},
            **{"moe_intermediate_size": self.expert_mlp, "shared_expert_intermediate_size": self.shared_mlp},
        }

    @property
    def _dense(self):
        return {
            **{"model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], "vocab_size": self.vocab},
            **{"hidden_size": self.hidden, "intermediate_size": self.mlp, "num_hidden_layers": self.layers},
            **{"num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim},
            **{"full_attention_interval": 2, "linear_num_key_heads": self.key_heads, "hidden_act": "silu"},
            **{"linear_num_value_heads": self.value_heads, "linear_key_head_dim": self.key_dim},
            **{"linear_value_head_dim": self.value_dim, "linear_conv_kernel_dim": self.taps, "rms_norm_eps": EPS},
            **{"rope_parameters": {"rope_theta": THETA, "partial_rotary_factor": self.rotated / self.head_dim}},
            **{"max_position_embeddings": 512, "tie_word_embeddings": self.is_tied, "mtp_num_hidden_layers": 1},
        }


def make_tensors(sizes, seed=0):
    """Return the random tensors of a model and of the layer."""
    random = np.random.RandomState(seed)

    def draw(*shape):
        return (random.randn(*shape) * shape[-1] ** -0.5).astype(np.float32)

    def norms(prefix, *names, size=sizes.hidden):
        return {f"{prefix}{name}.weight": 0.3 * draw(size) for name in names}

    def projections(prefix, mlp):
        shapes = {"gate": (mlp, sizes.hidden), "up": (mlp, sizes.hidden), "down": (sizes.hidden, mlp)}
        return {f"{prefix}{name}_proj.weight": draw(*shape) for name, shape in shapes.items()}

    def feed_forward(prefix):
        if not sizes.experts:
            return projections(f"{prefix}mlp.", sizes.mlp)
        made = {f"{prefix}mlp.gate.weight": 3 * draw(sizes.experts, sizes.hidden)}
        for number in range(sizes.experts):
            made |= projections(f"{prefix}mlp.experts.{number}.", sizes.expert_mlp)
        made |= projections(f"{prefix}mlp.shared_expert.", sizes.shared_mlp)
        return made | {f"{prefix}mlp.shared_expert_gate.weight": draw(1, sizes.hidden)}

    def attention(prefix):
        width, kv_width = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        return {
            f"{prefix}self_attn.q_proj.weight": draw(2 * width, sizes.hidden),
            f"{prefix}self_attn.k_proj.weight": draw(kv_width, sizes.hidden),
            f"{prefix}self_attn.v_proj.weight": draw(kv_width, sizes.hidden),
            f"{prefix}self_attn.o_proj.weight": draw(sizes.hidden, width),
            **norms(f"{prefix}self_attn.", "q_norm", "k_norm", size=sizes.head_dim),
        }

    def recurrence(prefix):
        of_keys, of_values = sizes.key_heads * sizes.key_dim, sizes.value_heads * sizes.value_dim
        return {
            f"{prefix}linear_attn.in_proj_qkv.weight": draw(2 * of_keys + of_values, sizes.hidden),
            f"{prefix}linear_attn.in_proj_z.weight": draw(of_values, sizes.hidden),
            f"{prefix}linear_attn.in_proj_b.weight": draw(sizes.value_heads, sizes.hidden),
            f"{prefix}linear_attn.in_proj_a.weight": draw(sizes.value_heads, sizes.hidden),
            f"{prefix}linear_attn.conv1d.weight": draw(2 * of_keys + of_values, 1, sizes.taps),
            f"{prefix}linear_attn.A_log": random.uniform(-1.5, 0.5, sizes.value_heads).astype(np.float32),
            f"{prefix}linear_attn.dt_bias": random.uniform(-4, -0.5, sizes.value_heads).astype(np.float32),
            f"{prefix}linear_attn.norm.weight": 1 + 0.3 * draw(sizes.value_dim),
            f"{prefix}linear_attn.out_proj.weight": draw(sizes.hidden, of_values),
        }

    target = {"model.embed_tokens.weight": draw(sizes.vocab, sizes.hidden), **norms("model.", "norm")}
    if not sizes.is_tied:
        target["lm_head.weight"] = draw(sizes.vocab, sizes.hidden)
    for number in range(sizes.layers):
        prefix = f"model.layers.{number}."
        target |= norms(prefix, "input_layernorm", "post_attention_layernorm") | feed_forward(prefix)
        target |= attention(prefix) if number % 2 else recurrence(prefix)
    prefix = "mtp.layers.0."
    further = norms("mtp.", "norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
    further |= norms(prefix, "input_layernorm", "post_attention_layernorm") | feed_forward(prefix) | attention(prefix)
    return target, further | {"mtp.fc.weight": draw(sizes.hidden, 2 * sizes.hidden)}


def _scaled(x, eps=EPS):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps)


def _norm(x, weight):
    return _scaled(x) * (1 + weight)


def _silu(x):
    return x / (1 + np.exp(-x))


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _rotated(x, sizes, positions):
    half = sizes.rotated // 2
    angles = positions[:, None] * THETA ** (-np.arange(half) / half)
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second, rest = x[..., :half], x[..., half : sizes.rotated], x[..., sizes.rotated :]
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine, rest], axis=-1)


def _attended(tensors, sizes, prefix, x):
    positions, group = np.arange(len(x)), sizes.heads // sizes.kv_heads

    def project(name, heads):
        return (x @ tensors[f"{prefix}self_attn.{name}.weight"].T).reshape(len(x), heads, -1)

    both = project("q_proj", sizes.heads)
    query, gate = both[..., : sizes.head_dim], both[..., sizes.head_dim :]
    query = _rotated(_norm(query, tensors[f"{prefix}self_attn.q_norm.weight"]), sizes, positions)
    key = _norm(project("k_proj", sizes.kv_heads), tensors[f"{prefix}self_attn.k_norm.weight"])
    key = np.repeat(_rotated(key, sizes, positions), group, axis=1)
    value = np.repeat(project("v_proj", sizes.kv_heads), group, axis=1)
    scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(sizes.head_dim)
    scores = np.where(positions[None, :] > positions[:, None], -np.inf, scores)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    attended = np.einsum("hqk,khd->qhd", shares, value) * _sigmoid(gate)
    return attended.reshape(len(x), -1) @ tensors[f"{prefix}self_attn.o_proj.weight"].T


def _recurrent(tensors, sizes, prefix, x):
    """Return what a layer's recurrence gives, token by token."""
    own = {name.removeprefix(f"{prefix}linear_attn."): a for name, a in tensors.items() if name.startswith(prefix)}
    inputs, taps = x @ own["in_proj_qkv.weight"].T, own["conv1d.weight"][:, 0]
    padded = np.concatenate([np.zeros((sizes.taps - 1, inputs.shape[1])), inputs])
    mixed = _silu(sum(padded[tap : tap + len(x)] * taps[:, tap] for tap in range(sizes.taps)))
    of_keys, group = sizes.key_heads * sizes.key_dim, sizes.value_heads // sizes.key_heads
    query, key = (part.reshape(len(x), sizes.key_heads, -1) for part in np.split(mixed[:, : 2 * of_keys], 2, axis=1))
    query, key = (
        np.repeat(part / np.sqrt(np.sum(part**2, axis=-1, keepdims=True) + UNIT_EPS), group, axis=1)
        for part in (query, key)
    )
    value = mixed[:, 2 * of_keys :].reshape(len(x), sizes.value_heads, -1)
    share = _sigmoid(x @ own["in_proj_b.weight"].T)
    step = np.log1p(np.exp(x @ own["in_proj_a.weight"].T + own["dt_bias"]))
    decay = np.exp(-np.exp(own["A_log"]) * step)
    state, results = np.zeros((sizes.value_heads, sizes.key_dim, sizes.value_dim)), []
    for q, k, v, b, g in zip(query, key, value, share, decay, strict=True):
        state = state * g[:, None, None]
        lacking = b[:, None] * (v - np.einsum("hkv,hk->hv", state, k))
        state = state + k[:, :, None] * lacking[:, None, :]
        results.append(np.einsum("hkv,hk->hv", state, q * sizes.key_dim**-0.5))
    gate = (x @ own["in_proj_z.weight"].T).reshape(len(x), sizes.value_heads, -1)
    gated = _scaled(np.array(results)) * own["norm.weight"] * _silu(gate)
    return gated.reshape(len(x), -1) @ own["out_proj.weight"].T


def _layer(tensors, sizes, prefix, hidden):
    mix = _attended if f"{prefix}self_attn.q_proj.weight" in tensors else _recurrent
    hidden = hidden + mix(tensors, sizes, prefix, _norm(hidden, tensors[f"{prefix}input_layernorm.weight"]))
    x = _norm(hidden, tensors[f"{prefix}post_attention_layernorm.weight"])
    return hidden + _fed_forward(tensors, sizes, f"{prefix}mlp.", x)


def _projected(tensors, prefix, x):
    gate, up = (x @ tensors[f"{prefix}{name}_proj.weight"].T for name in ("gate", "up"))
    return (_silu(gate) * up) @ tensors[f"{prefix}down_proj.weight"].T


def _fed_forward(tensors, sizes, prefix, x):
    """Return what a layer's feed-forward gives; with experts, of the likeliest of each token and of the shared one."""
    if not sizes.experts:
        return _projected(tensors, prefix, x)
    scores = np.exp(x @ tensors[f"{prefix}gate.weight"].T)
    chosen = np.argsort(-scores, axis=-1)[:, : sizes.experts_of_token]
    shares = np.take_along_axis(scores, chosen, axis=-1)
    shares /= shares.sum(axis=-1, keepdims=True)
    shared = _projected(tensors, f"{prefix}shared_expert.", x)
    made = shared * _sigmoid(x @ tensors[f"{prefix}shared_expert_gate.weight"].T)
    for token, (numbers, weights) in enumerate(zip(chosen, shares, strict=True)):
        for number, weight in zip(numbers, weights, strict=True):
            made[token] += weight * _projected(tensors, f"{prefix}experts.{number}.", x[token])
    return made


def _wide(tensors):
    return {name: tensor.astype(np.float64) for name, tensor in tensors.items()}


def target_states(tensors, sizes, token_ids):
    """Return the model's hidden states behind its last norm, and its logits."""
    wide = _wide(tensors)
    hidden = wide["model.embed_tokens.weight"][token_ids]
    for number in range(sizes.layers):
        hidden = _layer(wide, sizes, f"model.layers.{number}.", hidden)
    last = _norm(hidden, wide["model.norm.weight"])
    return last, last @ wide.get("lm_head.weight", wide["model.embed_tokens.weight"]).T


def drafts(target, further, sizes, token_ids, count):
    """Return the tokens that the layer drafts after a text, and how much likelier each is than the next likeliest."""
    wide, of_target = _wide(further), _wide(target)
    embed = of_target["model.embed_tokens.weight"]
    hidden, _ = target_states(target, sizes, token_ids[:-1])
    following, drafted, margins = list(token_ids[1:]), [], []
    for _ in range(count):
        of_token = _norm(embed[following], wide["mtp.pre_fc_norm_embedding.weight"])
        of_text = _norm(hidden, wide["mtp.pre_fc_norm_hidden.weight"])
        entering = np.concatenate([of_token, of_text], axis=-1) @ wide["mtp.fc.weight"].T
        result = _norm(_layer(wide, sizes, "mtp.layers.0.", entering)[-1], wide["mtp.norm.weight"])
        logits = result @ of_target.get("lm_head.weight", embed).T
        drafted.append(int(np.argmax(logits)))
        margins.append(float(np.diff(np.sort(logits)[-2:])[0]))
        hidden, following = np.concatenate([hidden, result[None]]), [*following, drafted[-1]]
    return drafted, margins
