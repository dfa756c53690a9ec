"""Export of a Whisper checkpoint to the file that whisper.cpp reads: matrices in float16, as it wants them on a CPU."""

import json
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
from safetensors.numpy import load_file

from examples.hear.tiny_en import CONTEXT_LEN
from service.media.log_mel import mel_filters

MAGIC = 0x67676D6C
FLOAT32, FLOAT16 = 0, 1  # types of tensors, and of a file
# Of names in the order in which they are replaced: openai-whisper's for Hugging Face's.
RENAMED = (
    ("encoder.layers", "encoder.blocks"),
    ("decoder.layers", "decoder.blocks"),
    ("self_attn_layer_norm", "attn_ln"),
    ("encoder_attn_layer_norm", "cross_attn_ln"),
    ("final_layer_norm", "mlp_ln"),
    ("encoder.layer_norm", "encoder.ln_post"),
    ("decoder.layer_norm", "decoder.ln"),
    ("self_attn", "attn"),
    ("encoder_attn", "cross_attn"),
    ("q_proj", "query"),
    ("k_proj", "key"),
    ("v_proj", "value"),
    ("out_proj", "out"),
    ("fc1", "mlp.0"),
    ("fc2", "mlp.2"),
    ("embed_positions.weight", "positional_embedding"),
    ("embed_tokens", "token_embedding"),
)


def export_ggml(checkpoint: Path, path: Path) -> Path:
    """Write the checkpoint as one file, unless it is there, and return its path.

    Source: https://github.com/ggml-org/whisper.cpp/blob/v1.7.6/src/whisper.cpp#L1485 (whisper_model_load)
    """
    if path.exists():
        return path
    config = json.loads((checkpoint / "config.json").read_text())
    sizes = (
        config["vocab_size"],
        *(config[name] for name in ("max_source_positions", "d_model", "encoder_attention_heads", "encoder_layers")),
        CONTEXT_LEN,
        *(config[name] for name in ("d_model", "decoder_attention_heads", "decoder_layers", "num_mel_bins")),
        FLOAT16,
    )
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(struct.pack(f"<{1 + len(sizes)}i", MAGIC, *sizes))
        _write_filters(file, config["num_mel_bins"])
        _write_tokens(file, checkpoint / "tokenizer.json")
        for name, tensor in load_file(checkpoint / "model.safetensors").items():
            _write_tensor(file, name.removeprefix("model."), tensor)
    partial.rename(path)
    return path


def _write_filters(file: BinaryIO, num_mels: int) -> None:
    filters = np.asarray(mel_filters(num_mels), np.float32)
    filters = filters if len(filters) == num_mels else filters.T
    file.write(struct.pack("<2i", *filters.shape) + np.ascontiguousarray(filters).tobytes())


def _write_tokens(file: BinaryIO, tokenizer: Path) -> None:
    """Write the bytes of the ordinary tokens; whisper.cpp knows the special ones."""
    described = json.loads(tokenizer.read_text())
    special = {token["content"] for token in described["added_tokens"]}
    byte_of = {character: byte for byte, character in _characters().items()}
    tokens = sorted(described["model"]["vocab"].items(), key=lambda item: item[1])
    written = [bytes(byte_of[character] for character in text) for text, _ in tokens if text not in special]
    file.write(struct.pack("<i", len(written)))
    for token in written:
        file.write(struct.pack("<i", len(token)) + token)


def _characters() -> dict[int, str]:
    """Return the character that stands for each byte in a byte-level vocabulary.

    Source: https://github.com/openai/gpt-2/blob/master/src/encoder.py#L9 (bytes_to_unicode)
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte if byte in printable else 256 + others.index(byte)) for byte in range(256)}


def _write_tensor(file: BinaryIO, name: str, tensor: np.ndarray) -> None:
    for theirs, ours in RENAMED:
        name = name.replace(theirs, ours)
    if name in ("encoder.conv1.bias", "encoder.conv2.bias"):
        tensor = tensor.reshape(-1, 1)
    is_matrix = name.endswith("weight") and tensor.ndim > 1
    encoded = name.encode()
    file.write(struct.pack("<3i", tensor.ndim, len(encoded), FLOAT16 if is_matrix else FLOAT32))
    file.write(struct.pack(f"<{tensor.ndim}i", *reversed(tensor.shape)) + encoded)
    file.write(np.ascontiguousarray(tensor, np.float16 if is_matrix else np.float32).tobytes())
