"""Export of a checkpoint of Llama or Qwen 3.5 to GGUF.

It runs in llama.cpp's environment and needs only numpy and gguf.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import gguf_qwen3_5

LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def export_gguf(checkpoint: Path, path: Path, kind: str = "F32") -> None:
    """Write the checkpoint as one file, without a vocabulary, because prompts and answers are token ids.

    Args:
        checkpoint: the folder.
        path: the file to write.
        kind: llama.cpp's name for the type of matrices: F32, BF16 or Q8_0.
    """
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    config = json.loads((checkpoint / "config.json").read_text())
    partial = path.with_suffix(".partial")
    is_hybrid = config["model_type"] == "qwen3_5_text"
    writer = GGUFWriter(partial, gguf_qwen3_5.ARCHITECTURE if is_hybrid else "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    if is_hybrid:
        gguf_qwen3_5.add_sizes(writer, config)
    else:
        writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"] if is_hybrid else config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    for name, tensor in _read_tensors(checkpoint / "model.safetensors"):
        if is_hybrid:
            theirs, ordered = gguf_qwen3_5.converted(name, tensor)
        else:
            theirs, ordered = _gguf_name(name), _interleaved(name, tensor, config)
        if kind != "F32" and ordered.ndim > 1 and "conv1d" not in name:
            matrix = GGMLQuantizationType[kind]
            writer.add_tensor(theirs, quantize(ordered, matrix), raw_dtype=matrix)
        else:
            writer.add_tensor(theirs, ordered)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(path)


def _read_tensors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors of a safetensors file in float32 without its library, which this environment lacks."""
    data = np.memmap(path, np.uint8, "r")
    (header_bytes,) = struct.unpack("<Q", data[:8].tobytes())
    for name, entry in json.loads(data[8 : 8 + header_bytes].tobytes()).items():
        if name != "__metadata__":
            begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
            stored = data[begin:end]
            if entry["dtype"] == "BF16":  # the upper halves of float32
                stored = (stored.view(np.uint16).astype(np.uint32) << 16).view(np.uint8)
            yield name, stored.view(np.float32).reshape(entry["shape"])


def _gguf_name(name: str) -> str:
    outside = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in outside:
        return outside[name]
    _, _, layer, *inner, _ = name.split(".")
    return f"blk.{layer}.{LAYER_NAMES['.'.join(inner)]}.weight"


def _interleaved(name: str, tensor: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """Reorder query and key rows: llama.cpp rotates adjacent pairs, Hugging Face the halves of a head.

    Source: https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py (LlamaModel.permute)
    """
    counts = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    heads = next((config[count] for part, count in counts.items() if f".{part}." in name), None)
    if heads is None:
        return tensor
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, tensor.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensor.shape))
