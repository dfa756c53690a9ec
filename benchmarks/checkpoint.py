"""The checkpoints of the benchmarks: models with the shapes of real ones and random weights.

Speed does not depend on the values of the weights, so nothing is downloaded. The tokenizer has one token per word, so
that a prompt sent as text (Levanter's server takes no token ids) has exactly the intended tokens.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase
from typing import override

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from service.models.decoder_weights import decoder_weight_specs
from service.models.registry import read_config

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>")
SPACE = "Ġ"  # a space in byte-level tokenizers


@dataclass(frozen=True)
class Geometry:
    """The sizes of a Llama."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int

    def hub_config(self, dtype: str = "float32") -> dict[str, object]:
        """Return the content of a Hugging Face config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.hidden_size // self.num_heads,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
            "vocab_size": self.vocab_size,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "torch_dtype": dtype,
        }


@dataclass(frozen=True)
class HybridGeometry(Geometry):
    """The sizes of a Qwen 3.5: every fourth layer attends, and the others keep a matrix for each head."""

    head_dim: int
    num_recurrent_heads: int  # for keys, and for values
    recurrent_head_dim: int

    @override
    def hub_config(self, dtype: str = "float32") -> dict[str, object]:
        heads, dim = self.num_recurrent_heads, self.recurrent_head_dim
        rope = {"rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25}
        return super().hub_config(dtype) | {
            **{"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "head_dim": self.head_dim},
            **{"rms_norm_eps": 1e-6, "full_attention_interval": 4, "linear_conv_kernel_dim": 4},
            **{"linear_num_key_heads": heads, "linear_num_value_heads": heads},
            **{"linear_key_head_dim": dim, "linear_value_head_dim": dim},
            "rope_parameters": rope | {"mrope_section": [11, 11, 10], "mrope_interleaved": True},
        }


# Source: the config.json of HuggingFaceTB/SmolLM-135M, meta-llama/Llama-3.2-1B and meta-llama/Llama-3.1-8B (whose
# embeddings are not tied).
SMOLLM_135M = Geometry(
    hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9, num_kv_heads=3, vocab_size=49152
)
LLAMA_8B = Geometry(
    hidden_size=4096, intermediate_size=14336, num_layers=32, num_heads=32, num_kv_heads=8, vocab_size=128256
)
LLAMA_1B = Geometry(
    hidden_size=2048, intermediate_size=8192, num_layers=16, num_heads=32, num_kv_heads=8, vocab_size=128256
)
# Of Qwen/Qwen3.5-0.8B, but for its vocabulary of 248,320.
QWEN_3_5_800M = HybridGeometry(
    **{"hidden_size": 1024, "intermediate_size": 3584, "num_layers": 24, "num_heads": 8, "num_kv_heads": 2},
    **{"vocab_size": 32768, "head_dim": 256, "num_recurrent_heads": 16, "recurrent_head_dim": 128},
)
TINY = Geometry(hidden_size=48, intermediate_size=96, num_layers=2, num_heads=3, num_kv_heads=1, vocab_size=2048)


def write_weights(folder: Path, geometry: Geometry, dtype: str = "float32") -> None:
    """Write `config.json` and `model.safetensors` with random weights of float32 or bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    config = geometry.hub_config(dtype)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    random = np.random.default_rng(0)
    shapes = {
        source.name: source.shape
        for spec in decoder_weight_specs(read_config("benchmark", config))
        for source in spec.sources
    }
    stored = np.dtype(getattr(ml_dtypes, dtype, dtype))
    tensors = {name: _random(random, shape).astype(stored) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def make_checkpoint(folder: Path, geometry: Geometry, write: Callable[[Path, Geometry], None] = write_weights) -> Path:
    """Write a checkpoint with its tokenizer, unless it exists.

    Args:
        folder: of the checkpoint.
        geometry: of the model.
        write: writes the configuration and the weights.

    Returns:
        `folder`.
    """
    done = folder / "tokenizer_config.json"  # written last
    if not done.exists():
        write(folder, geometry)
        _tokenizer(geometry.vocab_size).save(str(folder / "tokenizer.json"))
        names = dict(zip(("pad_token", "bos_token", "eos_token"), SPECIAL_TOKENS, strict=True))
        done.write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
    return folder


def word_ids(folder: Path) -> list[int]:
    """Return the ids of the tokens that are a space and a word; any list of them survives decoding and encoding."""
    vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return [token_id for token, token_id in vocab.items() if token.startswith(SPACE) and len(token) > 1]


def _random(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return a matrix of small random values, or a norm's vector of ones."""
    return (
        random.standard_normal(shape, np.float32) * np.float32(0.05) if len(shape) > 1 else np.ones(shape, np.float32)
    )


def _tokenizer(vocab_size: int) -> Tokenizer:
    """Return a byte-level tokenizer whose tokens are all bytes, then the words a, b, ... aa, ab, ... in order."""
    tokens = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words = (letters for length in (1, 2, 3, 4) for letters in product(ascii_lowercase, repeat=length))
    merges = []
    for *stem, last in islice(words, vocab_size - len(tokens)):
        merges.append((SPACE + "".join(stem), last))
        tokens.append("".join(merges[-1]))
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    return backend
