"""Tiny random models that see. Needs neither jax nor torch."""

from pathlib import Path

import numpy as np

from tests.parity.family_cases import draw

REFERENCE_PATH = Path(__file__).parent / "references" / "idefics3.npz"
IMAGE_TOKEN = 90
IMAGE_SIZE = 28  # pixels; the patches leave four at each edge
NUM_ROWS = 4  # of a picture
CONFIG = {
    "model_type": "idefics3",
    "image_token_id": IMAGE_TOKEN,
    "scale_factor": 2,
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "llama",
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    },
    "vision_config": {
        "model_type": "idefics3_vision",
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 4,
        "num_attention_heads": 3,
        "image_size": IMAGE_SIZE,
        "patch_size": 6,
    },
}


def pictures(count: int = 3) -> np.ndarray:
    """Return the pixels of some pictures, [picture, row, column, channel]."""
    return np.random.RandomState(11).randint(0, 256, (count, IMAGE_SIZE, IMAGE_SIZE, 3)).astype(np.uint8)


def token_ids() -> np.ndarray:
    """Return a text with three pictures, two of which touch."""
    seen = [IMAGE_TOKEN] * NUM_ROWS
    return np.array([1, 5, 17, *seen, 8, 40, 41, 7, *seen, *seen, 60, 61, 3, 9, 12], np.int32)


def tensors() -> dict[str, np.ndarray]:
    """Draw every tensor of the checkpoint."""
    with np.load(REFERENCE_PATH) as kept:
        shapes = {str(name): tuple(map(int, shape.split())) for name, shape in kept["shapes"]}
    return {name: draw("idefics3", name, shape) for name, shape in shapes.items()}
