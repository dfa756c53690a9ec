"""Tiny random checkpoints, one per family and per rope, tying and window variant.

Weights come from numpy's frozen `RandomState`, so that the reference maker and the tests write the same bytes without
sharing a file. Needs neither jax nor torch.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

NUM_TOKENS = 40  # more than every window and every original context below
VOCAB_SIZE = 96

_GEOMETRY = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Case:
    """One checkpoint: what differs from the common geometry."""

    name: str
    model_type: str
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def hub_config(self) -> dict[str, Any]:
        return {**_GEOMETRY, "model_type": self.model_type, **self.config}

    @property
    def token_ids(self) -> np.ndarray:
        return np.random.RandomState(7).randint(0, VOCAB_SIZE, NUM_TOKENS).astype(np.int32)

    @property
    def reference_path(self) -> Path:
        return Path(__file__).parent / "references" / f"{self.name}.npz"

    def tensors(self) -> dict[str, np.ndarray]:
        """Draw every tensor of the checkpoint, under Hugging Face's names."""
        random = np.random.RandomState(sum(self.name.encode()))
        return {name: _draw(random, name, shape) for name, shape in _tensor_shapes(self.hub_config).items()}


def _draw(random: np.random.RandomState, name: str, shape: tuple[int, ...]) -> np.ndarray:
    # Norms around one; the rest with a gain of about one, as a trained model has: 0.2 * sqrt(hidden_size) = 1.1.
    return (random.randn(*shape) * 0.2 + (1.0 if "norm" in name else 0.0)).astype(np.float32)


def _tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    embed, mlp, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head_dim = config.get("head_dim") or embed // config["num_attention_heads"]
    widths = {"q": config["num_attention_heads"] * head_dim}
    widths["k"] = widths["v"] = config["num_key_value_heads"] * head_dim
    has_attention_bias = config.get("attention_bias", False)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, embed), "model.norm.weight": (embed,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, embed)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}{norm}.weight"] = (embed,)
        for name, width in widths.items():
            shapes[f"{prefix}self_attn.{name}_proj.weight"] = (width, embed)
            if has_attention_bias or config["model_type"] == "qwen2":
                shapes[f"{prefix}self_attn.{name}_proj.bias"] = (width,)
        shapes[f"{prefix}self_attn.o_proj.weight"] = (embed, widths["q"])
        if has_attention_bias:
            shapes[f"{prefix}self_attn.o_proj.bias"] = (embed,)
        if config["model_type"] == "qwen3":
            shapes[f"{prefix}self_attn.q_norm.weight"] = shapes[f"{prefix}self_attn.k_norm.weight"] = (head_dim,)
        for name, shape in {"gate": (mlp, embed), "up": (mlp, embed), "down": (embed, mlp)}.items():
            shapes[f"{prefix}mlp.{name}_proj.weight"] = shape
            if config.get("mlp_bias"):
                shapes[f"{prefix}mlp.{name}_proj.bias"] = shape[:1]
    return shapes


def _rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10_000.0, **parameters}}


CASES = (
    Case("llama_grouped_heads", "llama"),
    Case("llama_one_head_each", "llama", {"num_key_value_heads": 4}),
    Case("llama_one_kv_head", "llama", {"num_key_value_heads": 1}),
    Case("llama_tied", "llama", {"tie_word_embeddings": True}),
    Case("llama_wide_heads", "llama", {"head_dim": 16}),
    Case("llama_biases", "llama", {"attention_bias": True, "mlp_bias": True}),
    Case("llama_theta", "llama", _rope(rope_type="default", rope_theta=500_000.0)),
    Case("llama_linear", "llama", _rope(rope_type="linear", factor=4.0)),
    Case(
        "llama_llama3",
        "llama",
        _rope(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
    Case("llama_yarn", "llama", _rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)),
    Case("mistral_window", "mistral", {"sliding_window": 8}),
    Case("mistral_no_window", "mistral", {"sliding_window": None, "head_dim": 8}),
    Case("qwen2", "qwen2"),
    Case("qwen2_tied", "qwen2", {"tie_word_embeddings": True}),
    Case("qwen2_window", "qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    Case("qwen3", "qwen3", {"head_dim": 16}),
    Case("qwen3_tied", "qwen3", {"head_dim": 8, "tie_word_embeddings": True}),
    Case(
        "qwen3_window",
        "qwen3",
        {"head_dim": 8, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    ),
)
