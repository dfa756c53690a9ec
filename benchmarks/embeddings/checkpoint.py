"""The checkpoints: MiniLM's real weights from a package, and the shape of bge-base with random weights."""

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from service.models.encoders.registry import any_encoder_weight_specs, read_encoder_config
from service.models.weight_spec import FLOAT32
from tests.parity.sentences import minilm

# Source: the config.json of BAAI/bge-base-en-v1.5.
BGE_BASE = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_act": "gelu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
WEIGHT_FILES = ("config.json", "model.safetensors")


def checkpoint(name: str, folder: Path) -> Path:
    """Return the folder of a checkpoint, which is made if it does not exist.

    Args:
        name: `minilm` or `bge-base`.
        folder: where `bge-base` lies.
    """
    if name == "minilm":
        return minilm()
    if not (folder / "model.safetensors").exists():
        _write(folder)
    return folder


def _write(folder: Path) -> None:
    """Write random weights; everything else, such as the tokenizer and the pooling, is MiniLM's."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(minilm(), folder, ignore=lambda _, names: [name for name in names if name in WEIGHT_FILES])
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"pooling_mode_mean_tokens": True, "word_embedding_dimension": BGE_BASE["hidden_size"]}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "config.json").write_text(json.dumps(BGE_BASE))
    random = np.random.default_rng(0)
    specs = any_encoder_weight_specs(read_encoder_config("benchmark", BGE_BASE), FLOAT32)
    tensors = {
        source.name: random.standard_normal(source.shape, np.float32) * np.float32(0.04)
        + np.float32(source.name.endswith("LayerNorm.weight"))
        for spec in specs
        for source in spec.sources
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
