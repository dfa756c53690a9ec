"""A Llama and an EAGLE-3 head for it, over whole texts in numpy, without a cache; and their tensors.

Written from the published computation, and with nothing of the service.
Source: vLLM `models/llama_eagle3.py` and `v1/spec_decode/eagle.py` (positions, shifted tokens); SafeAILab EAGLE
`model/cnets.py` (the result before the last norm is what a head reads next).
"""

from dataclasses import dataclass

import numpy as np

EPS, THETA = 1e-5, 10_000.0


@dataclass(frozen=True)
class Sizes:
    """Of the target, and of the head where it differs."""

    vocab: int = 60
    hidden: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    mlp: int = 48
    layers: int = 8
    drafted: int = 40  # tokens of the head's vocabulary

    @property
    def hub_config(self):
        """The `config.json` of the target."""
        return {
            **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": self.vocab},
            **{"hidden_size": self.hidden, "intermediate_size": self.mlp, "num_hidden_layers": self.layers},
            **{"num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim},
            **{"rms_norm_eps": EPS, "rope_theta": THETA, "max_position_embeddings": 512, "hidden_act": "silu"},
            **{"tie_word_embeddings": False},
        }

    @property
    def head_config(self):
        """That of the head."""
        own = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": self.drafted}
        return {**self.hub_config, **own}


def layer_tensors(draw, sizes, prefix, num_read):
    """Return the tensors of a layer whose attention reads so many numbers."""
    width, kv_width = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    shapes = {
        "self_attn.q_proj": (width, num_read),
        "self_attn.k_proj": (kv_width, num_read),
        "self_attn.v_proj": (kv_width, num_read),
        "self_attn.o_proj": (sizes.hidden, width),
        "mlp.gate_proj": (sizes.mlp, sizes.hidden),
        "mlp.up_proj": (sizes.mlp, sizes.hidden),
        "mlp.down_proj": (sizes.hidden, sizes.mlp),
    }
    tensors = {f"{prefix}{name}.weight": draw(shape) for name, shape in shapes.items()}
    norms = ("input_layernorm", "post_attention_layernorm")
    return tensors | {f"{prefix}{name}.weight": 1 + draw((sizes.hidden,)) for name in norms}


def make_tensors(sizes=Sizes(), seed=0, *, has_embeddings=False):
    """Return the random tensors of a target, and those of a head."""
    random = np.random.RandomState(seed)

    def draw(shape):
        return (random.randn(*shape) * shape[-1] ** -0.5).astype(np.float32)

    target = {
        "model.embed_tokens.weight": draw((sizes.vocab, sizes.hidden)),
        "model.norm.weight": 1 + draw((sizes.hidden,)),
        "lm_head.weight": draw((sizes.vocab, sizes.hidden)),
    }
    for number in range(sizes.layers):
        target |= layer_tensors(draw, sizes, f"model.layers.{number}.", sizes.hidden)
    head = layer_tensors(draw, sizes, "midlayer.", 2 * sizes.hidden)
    head |= {
        "midlayer.hidden_norm.weight": 1 + draw((sizes.hidden,)),
        "fc.weight": draw((sizes.hidden, 3 * sizes.hidden)),
        "norm.weight": 1 + draw((sizes.hidden,)),
        "lm_head.weight": draw((sizes.drafted, sizes.hidden)),
    }
    tokens = np.sort(random.choice(sizes.vocab, sizes.drafted, replace=False))
    head["d2t"] = tokens - np.arange(sizes.drafted)
    head["t2d"] = np.isin(np.arange(sizes.vocab), tokens)
    if has_embeddings:
        head["embed_tokens.weight"] = draw((sizes.vocab, sizes.hidden))
    return target, head


def _rms(x, weight):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + EPS) * weight


def _rotated(x, positions):
    half = x.shape[-1] // 2
    angles = positions[:, None] * THETA ** (-np.arange(half) / half)
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def _layer(tensors, sizes, prefix, read, residual):
    """Return a layer's result of what its attention reads, position by position from 0."""
    positions, group = np.arange(len(read)), sizes.heads // sizes.kv_heads

    def project(name):
        return (read @ tensors[f"{prefix}self_attn.{name}.weight"].T).reshape(len(read), -1, sizes.head_dim)

    query, key, value = (project(name) for name in ("q_proj", "k_proj", "v_proj"))
    query, key = _rotated(query, positions), np.repeat(_rotated(key, positions), group, axis=1)
    value = np.repeat(value, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(sizes.head_dim)
    scores = np.where(positions[None, :] > positions[:, None], -np.inf, scores)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    attended = np.einsum("hqk,khd->qhd", shares, value).reshape(len(read), -1)
    hidden = residual + attended @ tensors[f"{prefix}self_attn.o_proj.weight"].T
    x = _rms(hidden, tensors[f"{prefix}post_attention_layernorm.weight"])
    gate, up = (x @ tensors[f"{prefix}mlp.{name}.weight"].T for name in ("gate_proj", "up_proj"))
    return hidden + (gate / (1 + np.exp(-gate)) * up) @ tensors[f"{prefix}mlp.down_proj.weight"].T


def target_states(tensors, sizes, token_ids):
    """Return the target's hidden states before each layer, and its logits."""
    wide = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    hidden, before = wide["model.embed_tokens.weight"][token_ids], []
    for number in range(sizes.layers):
        before.append(hidden)
        prefix = f"model.layers.{number}."
        hidden = _layer(wide, sizes, prefix, _rms(hidden, wide[f"{prefix}input_layernorm.weight"]), hidden)
    return before, _rms(hidden, wide["model.norm.weight"]) @ wide["lm_head.weight"].T


def drafts(target, head, sizes, token_ids, count, *, is_residual_normalized=False):
    """Return the tokens that a head drafts after a text, and how much likelier each is than the next likeliest."""
    wide = {name: tensor.astype(np.float64) for name, tensor in head.items() if tensor.dtype == np.float32}
    embed = wide.get("embed_tokens.weight", target["model.embed_tokens.weight"].astype(np.float64))
    before, _ = target_states(target, sizes, token_ids[:-1])
    taps = (2, sizes.layers // 2, sizes.layers - 3)
    hidden = np.concatenate([before[tap] for tap in taps], axis=-1) @ wide["fc.weight"].T
    following, drafted, margins = list(token_ids[1:]), [], []
    for _ in range(count):
        normal = _rms(hidden, wide["midlayer.hidden_norm.weight"])
        embedded = _rms(embed[following], wide["midlayer.input_layernorm.weight"])
        residual = normal if is_residual_normalized else hidden
        result = _layer(wide, sizes, "midlayer.", np.concatenate([embedded, normal], axis=-1), residual)[-1]
        logits = _rms(result, wide["norm.weight"]) @ wide["lm_head.weight"].T
        best = int(np.argmax(logits))
        drafted.append(best + int(head["d2t"][best]))
        margins.append(float(np.diff(np.sort(logits)[-2:])[0]))
        hidden, following = np.concatenate([hidden, result[None]]), [*following, drafted[-1]]
    return drafted, margins
