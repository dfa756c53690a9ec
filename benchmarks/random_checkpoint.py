"""Checkpoints with the shapes of real models and random weights, written as safetensors without a model library."""

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np

from service.models.decoder_weights import decoder_weight_specs
from service.models.registry import read_config

DTYPES = {"bfloat16": ("BF16", np.dtype(ml_dtypes.bfloat16)), "float32": ("F32", np.dtype(np.float32))}

# Source: the config.json of HuggingFaceTB/SmolLM2-135M and of meta-llama/Llama-3.2-1B.
GEOMETRIES = {
    "135M": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
    },
    "1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
}


def hub_config(geometry: str, dtype: str) -> dict[str, object]:
    """Return the content of config.json for a Llama of this geometry."""
    fixed = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": dtype,
    }
    return fixed | GEOMETRIES[geometry]


def write_checkpoint(folder: Path, geometry: str, dtype: str) -> None:
    """Write `config.json` and `model.safetensors`, with tensors sorted by name as in the safetensors library."""
    folder.mkdir(parents=True, exist_ok=True)
    config = hub_config(geometry, dtype)
    (folder / "config.json").write_text(json.dumps(config))
    sources = [s for spec in decoder_weight_specs(read_config("benchmark", config)) for s in spec.sources]
    shapes = {source.name: source.shape for source in sorted(sources, key=lambda source: source.name)}
    dtype_name, stored = DTYPES[dtype]
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + int(np.prod(shape)) * stored.itemsize
        header[name] = {"dtype": dtype_name, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the safetensors library aligns the first tensor in the same way
    random = np.random.default_rng(0)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            file.write((random.standard_normal(shape, np.float32) * 0.02).astype(stored).tobytes())
