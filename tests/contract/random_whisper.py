"""A Whisper of random weights with a tokenizer of its own, as a checkpoint: it hears nothing, by all the rules."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from service.models.config import HubConfig
from service.models.decoder_weights import decoder_weight_specs
from service.models.families.whisper import read_config
from tests.text.speech.small_whisper import replayed_whisper

SIZES = {
    "model_type": "whisper",
    "architectures": ["WhisperForConditionalGeneration"],
    "d_model": 32,
    "encoder_layers": 6,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_layers": 3,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 48,
    "max_source_positions": 1500,
    "num_mel_bins": 80,
    "max_target_positions": 64,
    "activation_function": "gelu",
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}


def write_random_whisper(folder: Path) -> None:
    """Write the files of the checkpoint."""
    tokenizer = replayed_whisper()
    config = SIZES | {"vocab_size": tokenizer.get_vocab_size()}
    random = np.random.RandomState(37)
    tensors = {}
    for spec in decoder_weight_specs(read_config(HubConfig("random", config)), np.dtype(np.float32)):
        for source in spec.sources:
            shape = source.shape or spec.shape
            scale = 1.0 if len(shape) == 1 else 3 / np.sqrt(shape[-1])
            tensors[source.name] = (scale * random.normal(size=shape)).astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer.save(str(folder / "tokenizer.json"))
