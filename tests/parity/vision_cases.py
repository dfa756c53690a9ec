"""Tiny random models that see. Needs neither jax nor torch."""

import zlib
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


QWEN_REFERENCE_PATH = REFERENCE_PATH.with_name("qwen3_vl.npz")
GRIDS = ((4, 6), (2, 2), (6, 4))  # patches of a column and a row, of each picture
QWEN_CONFIG = {
    "model_type": "qwen3_vl",
    "image_token_id": IMAGE_TOKEN,
    "video_token_id": 91,
    "vision_start_token_id": 92,
    "vision_end_token_id": 93,
    "tie_word_embeddings": True,
    "text_config": {
        "model_type": "qwen3_vl_text",
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5_000_000.0,
        "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [4, 2, 2]},
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    },
    "vision_config": {
        "model_type": "qwen3_vl_vision",
        "depth": 5,
        "hidden_size": 24,
        "num_heads": 3,
        "intermediate_size": 40,
        "patch_size": 4,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 25,
        "deepstack_visual_indexes": [0, 1, 3],
        "out_hidden_size": 32,
        "hidden_act": "gelu_pytorch_tanh",
        "in_channels": 3,
    },
}


QWEN35_REFERENCE_PATH = REFERENCE_PATH.with_name("qwen3_5_vision.npz")
QWEN35_CONFIG = {
    **{key: value for key, value in QWEN_CONFIG.items() if not key.endswith("_config")},
    "model_type": "qwen3_5",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_5_text",
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "pad_token_id": None,
        "layer_types": [*["linear_attention", "linear_attention", "full_attention"], "linear_attention"],
        **{"linear_conv_kernel_dim": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12},
        **{"linear_num_key_heads": 2, "linear_num_value_heads": 6},
        "rope_parameters": {
            **{"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
            **{"mrope_section": [2, 1, 1], "mrope_interleaved": True},
        },
    },
    "vision_config": {
        **{key: value for key, value in QWEN_CONFIG["vision_config"].items() if key != "deepstack_visual_indexes"},
        "model_type": "qwen3_5_vision",
    },
}


def draw_qwen35(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw a tensor; of the norms, those of the encoder are no offsets from one."""
    return draw("qwen3_vl" if "visual" in name else "qwen3_5", name, shape)


def qwen35_tensors() -> dict[str, np.ndarray]:
    """Draw every tensor of the checkpoint."""
    with np.load(QWEN35_REFERENCE_PATH) as kept:
        shapes = {str(name): tuple(map(int, shape.split())) for name, shape in kept["shapes"]}
    return {name: draw_qwen35(name, shape) for name, shape in shapes.items()}


GEMMA_REFERENCE_PATH = REFERENCE_PATH.with_name("gemma3_vision.npz")
GEMMA_IMAGE_SIZE, GEMMA_ROWS = 24, 9  # pixels of an edge, and tokens of a picture
GEMMA_AROUND = (92, 93)  # tokens before and after a picture's
GEMMA_CONFIG = {
    "model_type": "gemma3",
    "image_token_index": IMAGE_TOKEN,
    "boi_token_index": GEMMA_AROUND[0],
    "eoi_token_index": GEMMA_AROUND[1],
    "mm_tokens_per_image": GEMMA_ROWS,
    "tie_word_embeddings": True,
    "text_config": {
        "model_type": "gemma3_text",
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "query_pre_attn_scalar": 24,
        "sliding_window": 10,  # little more than a picture
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 4,
        "num_attention_heads": 3,
        "image_size": GEMMA_IMAGE_SIZE,
        "patch_size": 4,
    },
}


MISTRAL_REFERENCE_PATH = REFERENCE_PATH.with_name("mistral3_vision.npz")
MISTRAL_GRIDS = ((4, 6), (2, 2), (6, 4), (2, 8))  # patches of a column and a row, of each picture
LINE_END, PICTURE_END = 92, 93  # tokens
MISTRAL_CONFIG = {
    "model_type": "mistral3",
    "image_token_index": IMAGE_TOKEN,
    "tie_word_embeddings": False,
    "projector_hidden_act": "gelu",
    "multimodal_projector_bias": True,
    "spatial_merge_size": 2,
    "vision_feature_layer": -1,
    "text_config": {
        "model_type": "ministral3",
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-4,
        "sliding_window": None,
        "rope_parameters": {
            **{"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 8.0, "original_max_position_embeddings": 16},
            **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4},
        },
        "pad_token_id": None,
    },
    "vision_config": {
        "model_type": "pixtral",
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 5,
        "num_attention_heads": 3,
        "image_size": 64,
        "patch_size": 4,
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "axial", "rope_theta": 50.0},
    },
}


def mistral_pictures() -> list[np.ndarray]:
    """Return the pixels of some pictures of whole patches, each [row, column, channel]."""
    random, size = np.random.RandomState(13), MISTRAL_CONFIG["vision_config"]["patch_size"]
    shapes = [(size * rows, size * columns, 3) for rows, columns in MISTRAL_GRIDS]
    return [random.randint(0, 256, shape).astype(np.uint8) for shape in shapes]


def mistral_token_ids() -> np.ndarray:
    """Return a text with the pictures, two of which follow each other, and text before and after them."""
    seen = []
    for rows, columns in MISTRAL_GRIDS:
        line = [*[IMAGE_TOKEN] * (columns // 2), LINE_END]
        seen.append([*(line * (rows // 2))[:-1], PICTURE_END])
    return np.array([1, 5, 17, *seen[0], 8, 40, 41, 7, *seen[1], *seen[2], 60, *seen[3], 61, 3, 9, 12], np.int32)


def mistral_tensors() -> dict[str, np.ndarray]:
    """Draw every tensor of the checkpoint, under the names of the model in memory."""
    with np.load(MISTRAL_REFERENCE_PATH) as kept:
        shapes = {str(name): tuple(map(int, shape.split())) for name, shape in kept["shapes"]}
    return {name: draw("mistral3", name, shape) for name, shape in shapes.items()}


def cut_patches(picture: np.ndarray, patch_size: int, merge_size: int, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut a picture as `service.media.scaling` does: the patches of a square after each other, then any padding."""
    rows, columns = (edge // (patch_size * merge_size) for edge in picture.shape[:2])
    cut = picture.reshape(rows, merge_size, patch_size, columns, merge_size, patch_size, 3)
    patches = cut.transpose(0, 3, 1, 4, 6, 2, 5).reshape(-1, 3 * patch_size**2)
    padded = np.full((num_rows * merge_size**2, patches.shape[1]), 7, np.uint8)
    padded[: len(patches)] = patches
    return padded, np.array([rows * merge_size, columns * merge_size], np.int32)


GEMMA4_GRIDS = ((6, 9), (3, 3), (9, 6), (3, 12))  # patches of a column and a row, of each picture
GEMMA4_AROUND = (92, 93)
_GEMMA4_TEXT = {
    "model_type": "gemma4_text",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 96,
    "sliding_window": 5,  # less than a picture
    "pad_token_id": 4,
    "hidden_activation": "gelu_pytorch_tanh",
}
_GEMMA4_VISION = {
    "model_type": "gemma4_vision",
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 5,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 8,
    "patch_size": 4,
    "pooling_kernel_size": 3,
    "position_embedding_size": 40,
    "rope_parameters": {"rope_type": "axial", "rope_theta": 20.0},
}
_GEMMA4 = {
    "model_type": "gemma4",
    "image_token_id": IMAGE_TOKEN,
    "boi_token_id": GEMMA4_AROUND[0],
    "eoi_token_id": GEMMA4_AROUND[1],
    "vision_soft_tokens_per_image": 12,
    "tie_word_embeddings": True,
    "audio_config": None,
}
SLIDING, FULL = "sliding_attention", "full_attention"
# The larger models, whose pictures see themselves, and the smaller ones, whose last layers share keys and values.
GEMMA4_CONFIGS = {
    "gemma4_vision": {
        **_GEMMA4,
        "text_config": {
            **_GEMMA4_TEXT,
            **{"attention_k_eq_v": True, "global_head_dim": 32, "num_global_key_value_heads": 1},
            **{"num_hidden_layers": 4, "layer_types": [SLIDING, FULL, SLIDING, FULL]},
            **{"final_logit_softcapping": 3.0, "use_bidirectional_attention": "vision"},
        },
        "vision_config": {**_GEMMA4_VISION, "standardize": True},
    },
    "gemma4_vision_small": {
        **_GEMMA4,
        "text_config": {
            **{**_GEMMA4_TEXT, "hidden_size_per_layer_input": 12},
            **{"global_head_dim": 32, "num_hidden_layers": 5, "num_kv_shared_layers": 2, "use_double_wide_mlp": True},
            "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL],
        },
        "vision_config": {**_GEMMA4_VISION, "use_clipped_linears": True},
    },
}


def gemma4_reference(name: str) -> Path:
    """Return the file of a model's references."""
    return REFERENCE_PATH.with_name(f"{name}.npz")


def draw_gemma4(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw a tensor; limits are such that some numbers exceed them."""
    if name.endswith(("_min", "_max")):
        most = np.random.RandomState(zlib.crc32(name.encode())).uniform(0.5, 1.5, shape)
        return (most if name.endswith("_max") else -most).astype(np.float32)
    drawn = draw("gemma4", name, shape)
    return drawn + np.float32(1) if name.endswith("std_scale") else drawn


def gemma4_tensors(name: str) -> dict[str, np.ndarray]:
    """Draw every tensor of the checkpoint, under the names of the model in memory."""
    with np.load(gemma4_reference(name)) as kept:
        shapes = {str(name): tuple(map(int, shape.split())) for name, shape in kept["shapes"]}
    return {name: draw_gemma4(name, shape) for name, shape in shapes.items()}


def gemma4_pictures() -> list[np.ndarray]:
    """Return the pixels of some pictures of whole patches, each [row, column, channel]."""
    random, size = np.random.RandomState(14), _GEMMA4_VISION["patch_size"]
    shapes = [(size * rows, size * columns, 3) for rows, columns in GEMMA4_GRIDS]
    return [random.randint(0, 256, shape).astype(np.uint8) for shape in shapes]


def gemma4_token_ids() -> np.ndarray:
    """Return a text with the pictures, two of which follow each other, and text before and after them."""
    first, last = GEMMA4_AROUND
    seen = [[first, *[IMAGE_TOKEN] * (rows * columns // 9), last] for rows, columns in GEMMA4_GRIDS]
    return np.array([1, 5, 17, *seen[0], 8, 40, 41, 7, *seen[1], *seen[2], 60, *seen[3], 61, 3, 9, 12], np.int32)


def gemma_pictures(count: int = 4) -> np.ndarray:
    """Return the pixels of some pictures, [picture, row, column, channel]."""
    shape = (count, GEMMA_IMAGE_SIZE, GEMMA_IMAGE_SIZE, 3)
    return np.random.RandomState(12).randint(0, 256, shape).astype(np.uint8)


def gemma_token_ids(num_pictures: int = 4) -> np.ndarray:
    """Return a text with pictures, of which the second follows the first, and text before and after them."""
    first, last = GEMMA_AROUND
    seen = [first, *[IMAGE_TOKEN] * GEMMA_ROWS, last]
    between = ([5, 17, 30], [7], [8, 40, 41, 7, 33, 12, 13, 14, 15], [60, 61])
    text = [token for number in range(num_pictures) for token in [*between[number], *seen]]
    return np.array([1, *text, 3, 9, 12], np.int32)


def gemma_tensors() -> dict[str, np.ndarray]:
    """Draw every tensor of the checkpoint, under the names of the model in memory."""
    with np.load(GEMMA_REFERENCE_PATH) as kept:
        shapes = {str(name): tuple(map(int, shape.split())) for name, shape in kept["shapes"]}
    return {name: draw_gemma(name, shape) for name, shape in shapes.items()}


def draw_gemma(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw a tensor; of the norms, those of SigLIP are no offsets from one."""
    return draw("siglip" if "vision_tower" in name else "gemma3", name, shape)


def patches(number: int) -> np.ndarray:
    """Return the pixels of a picture's patches, [patch, channel * row * column]."""
    rows, columns = GRIDS[number]
    size = 3 * QWEN_CONFIG["vision_config"]["patch_size"] ** 2
    return np.random.RandomState(20 + number).randint(0, 256, (rows * columns, size)).astype(np.uint8)


def qwen_token_ids() -> np.ndarray:
    """Return a text with the three pictures, two of which have a token alone between them."""
    seen = [[92, *[IMAGE_TOKEN] * (rows * columns // 4), 93] for rows, columns in GRIDS]
    return np.array([1, 5, 17, *seen[0], 8, 40, 41, 7, *seen[1], *seen[2], 60, 61, 3, 9, 12], np.int32)


def qwen_tensors() -> dict[str, np.ndarray]:
    """Draw every tensor of the checkpoint."""
    with np.load(QWEN_REFERENCE_PATH) as kept:
        shapes = {str(name): tuple(map(int, shape.split())) for name, shape in kept["shapes"]}
    return {name: draw("qwen3_vl", name, shape) for name, shape in shapes.items()}


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
