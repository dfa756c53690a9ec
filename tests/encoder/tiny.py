"""Tiny encoders with random weights: their checkpoints, and their vectors by numpy alone.

The numpy forward pass computes one text at a time, in float64, and shares no code with the service.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from safetensors.numpy import save_file

WORDS = ("the", "a", "cat", "dog", "sat", "ran", "on", "mat", "##s", "query", ":", "fast", "red", "blue", "tree", "is")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
VOCAB = {token: index for index, token in enumerate((*SPECIAL, *WORDS))}
CLS, SEP = VOCAB["[CLS]"], VOCAB["[SEP]"]

CONFIG = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": len(VOCAB),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "pad_token_id": 0,
}
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]
DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
DENSE_CONFIG = {
    "in_features": 32,
    "out_features": 12,
    "bias": True,
    "activation_function": "torch.nn.modules.activation.Tanh",
}


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a BERT checkpoint."""
    embed, mlp = config["hidden_size"], config["intermediate_size"]
    found: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], embed),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], embed),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], embed),
    }
    norms = ["embeddings.LayerNorm"]
    linear = {"pooler.dense": (embed, embed)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"encoder.layer.{layer}."
        linear |= {f"{prefix}attention.self.{name}": (embed, embed) for name in ("query", "key", "value")}
        linear |= {
            f"{prefix}attention.output.dense": (embed, embed),
            f"{prefix}intermediate.dense": (mlp, embed),
            f"{prefix}output.dense": (embed, mlp),
        }
        norms += [f"{prefix}attention.output.LayerNorm", f"{prefix}output.LayerNorm"]
    for name, shape in linear.items():
        found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name in norms:
        found |= {f"{name}.weight": (embed,), f"{name}.bias": (embed,)}
    return found


def tensors_of(config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Random tensors: norms around one, the rest with a gain of about one."""
    random = np.random.RandomState(seed)
    return {
        name: (random.randn(*shape) * 0.2 + (1.0 if name.endswith("LayerNorm.weight") else 0.0)).astype(np.float32)
        for name, shape in shapes(config).items()
    }


def write_checkpoint(
    folder: Path, *, pooling: str | None = "mean_tokens", files: dict[str, Any] | None = None, **config: Any
) -> dict[str, np.ndarray]:
    """Write a checkpoint and return its tensors; without a pooling it has no files of sentence-transformers."""
    folder.mkdir(parents=True, exist_ok=True)
    merged = CONFIG | config
    contents: dict[str, Any] = {"config.json": merged}
    if pooling is not None:
        contents |= {"modules.json": MODULES, "1_Pooling/config.json": {f"pooling_mode_{pooling}": True}}
    for name, content in (contents | (files or {})).items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    tensors = tensors_of(merged)
    save_file(tensors, folder / "model.safetensors")
    tokenizer().save(str(folder / "tokenizer.json"))
    return tensors


def write_dense(folder: Path) -> dict[str, np.ndarray]:
    """Write the weights of the module in `DENSE`."""
    random = np.random.RandomState(9)
    tensors = {
        "linear.weight": random.randn(DENSE_CONFIG["out_features"], DENSE_CONFIG["in_features"]).astype(np.float32),
        "linear.bias": random.randn(DENSE_CONFIG["out_features"]).astype(np.float32),
    }
    save_file(tensors, folder / "2_Dense" / "model.safetensors")
    return tensors


def tokenizer() -> tokenizers.Tokenizer:
    """A WordPiece tokenizer over WORDS that adds [CLS] and [SEP]."""
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(VOCAB, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.decoder = tokenizers.decoders.WordPiece()
    made.add_special_tokens(list(SPECIAL))
    made.post_processor = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", CLS), ("[SEP]", SEP)]
    )
    return made


def hidden_states(
    tensors: dict[str, np.ndarray],
    config: dict[str, Any],
    token_ids: list[int],
    *,
    first_position: int = 0,
    second_from: int | None = None,
) -> np.ndarray:
    """The last hidden states of one text; float64 of shape [token, hidden]."""
    weights = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    num_heads, eps = config["num_attention_heads"], config["layer_norm_eps"]

    def norm(name, x):
        centered = x - x.mean(-1, keepdims=True)
        scaled = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + eps)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(name, x):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    positions = first_position + np.arange(len(token_ids))
    summed = weights["embeddings.word_embeddings.weight"][token_ids]
    summed = summed + weights["embeddings.position_embeddings.weight"][positions]
    types = (np.arange(len(token_ids)) >= (len(token_ids) if second_from is None else second_from)).astype(int)
    x = norm("embeddings.LayerNorm", summed + weights["embeddings.token_type_embeddings.weight"][types])
    gelu = np.vectorize(lambda value: value * 0.5 * (1 + math.erf(value / math.sqrt(2))))
    for layer in range(config["num_hidden_layers"]):
        prefix = f"encoder.layer.{layer}."
        parts = []
        split = [
            linear(f"{prefix}attention.self.{name}", x).reshape(len(x), num_heads, -1)
            for name in ("query", "key", "value")
        ]
        for head in range(num_heads):
            query, key, value = (part[:, head] for part in split)
            scores = query @ key.T / math.sqrt(query.shape[-1])
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            parts.append(shares / shares.sum(-1, keepdims=True) @ value)
        x = norm(
            f"{prefix}attention.output.LayerNorm",
            x + linear(f"{prefix}attention.output.dense", np.concatenate(parts, axis=-1)),
        )
        x = norm(
            f"{prefix}output.LayerNorm",
            x + linear(f"{prefix}output.dense", gelu(linear(f"{prefix}intermediate.dense", x))),
        )
    return x


def pooled(hidden: np.ndarray, pooling: str) -> np.ndarray:
    """The vector of a text's hidden states."""
    return {
        "cls_token": hidden[0],
        "mean_tokens": hidden.mean(0),
        "max_tokens": hidden.max(0),
        "mean_sqrt_len_tokens": hidden.sum(0) / math.sqrt(len(hidden)),
        "weightedmean_tokens": np.average(hidden, axis=0, weights=np.arange(len(hidden)) + 1),
        "lasttoken": hidden[-1],
    }[pooling]


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)
