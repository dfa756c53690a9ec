"""The model that every contender serves: a Llama of SmolLM-135M's shape with random weights, in float32.

Speed does not depend on the values of the weights, so nothing is downloaded. The tokenizer has one token per word, so
that a prompt sent as text (Levanter's server takes no token ids) has exactly the intended tokens.
"""

import json
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

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

    def hub_config(self) -> dict[str, object]:
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
            "torch_dtype": "float32",
        }

    def weights(self) -> dict[str, np.ndarray]:
        """Return random weights, named as in a Hugging Face checkpoint."""
        random = np.random.default_rng(0)
        hidden, mlp = self.hidden_size, self.intermediate_size
        kv = self.num_kv_heads * hidden // self.num_heads
        shapes = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (mlp, hidden),
            "mlp.up_proj": (mlp, hidden),
            "mlp.down_proj": (hidden, mlp),
        }
        tensors = {"model.embed_tokens.weight": _matrix(random, (self.vocab_size, hidden))}
        for layer in range(self.num_layers):
            for name, shape in shapes.items():
                tensors[f"model.layers.{layer}.{name}.weight"] = _matrix(random, shape)
            for name in ("input_layernorm", "post_attention_layernorm"):
                tensors[f"model.layers.{layer}.{name}.weight"] = np.ones(hidden, np.float32)
        return tensors | {"model.norm.weight": np.ones(hidden, np.float32)}


# Source: https://huggingface.co/HuggingFaceTB/SmolLM-135M/blob/main/config.json
SMOLLM_135M = Geometry(
    hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9, num_kv_heads=3, vocab_size=49152
)
TINY = Geometry(hidden_size=48, intermediate_size=96, num_layers=2, num_heads=3, num_kv_heads=1, vocab_size=2048)


def make_checkpoint(folder: Path, geometry: Geometry) -> Path:
    """Write the checkpoint, unless it exists.

    Returns:
        `folder`.
    """
    done = folder / "tokenizer_config.json"  # written last
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        save_file(geometry.weights(), folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(geometry.hub_config(), indent=1))
        _tokenizer(geometry.vocab_size).save(str(folder / "tokenizer.json"))
        names = dict(zip(("pad_token", "bos_token", "eos_token"), SPECIAL_TOKENS, strict=True))
        done.write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
    return folder


def word_ids(folder: Path) -> list[int]:
    """Return the ids of the tokens that are a space and a word; any list of them survives decoding and encoding."""
    vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return [token_id for token, token_id in vocab.items() if token.startswith(SPACE) and len(token) > 1]


def _matrix(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return random.standard_normal(shape, np.float32) * np.float32(0.05)


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
