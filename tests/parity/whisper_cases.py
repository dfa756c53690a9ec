"""A tiny random Whisper. Needs neither jax nor torch."""

from pathlib import Path

import numpy as np

from tests.parity.family_cases import draw

REFERENCE_PATH = Path(__file__).parent / "references" / "whisper.npz"
NUM_TOKENS = 20
NUM_POSITIONS = 26  # of the memory; no multiple of a page
CONFIG = {
    "model_type": "whisper",
    "vocab_size": 96,
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 56,
    "num_mel_bins": 20,
    "max_source_positions": NUM_POSITIONS,
    "max_target_positions": 40,
    "activation_function": "gelu",
    "tie_word_embeddings": True,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "decoder_start_token_id": 2,
}


def token_ids() -> np.ndarray:
    return np.random.RandomState(7).randint(0, CONFIG["vocab_size"], NUM_TOKENS).astype(np.int32)


def features() -> np.ndarray:
    """Return features as a window has them, [frame, mel]."""
    return np.random.RandomState(8).randn(2 * NUM_POSITIONS, CONFIG["num_mel_bins"]).astype(np.float32)


def tensors() -> dict[str, np.ndarray]:
    """Draw every tensor of the checkpoint."""
    with np.load(REFERENCE_PATH) as kept:
        shapes = {str(name): tuple(map(int, shape.split())) for name, shape in kept["shapes"]}
    return {name: draw("whisper", name, shape) for name, shape in shapes.items()}
