"""Whisper in transformers on torch, greedy, in float32, no HTTP, in batches of the size that is fastest here.

python -m benchmarks.peers.transformers_whisper CHECKPOINT
"""

import json
import sys
import time
import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.worker import Generate, run_worker

BATCH_SIZES = (4, 8, 16)
NO_TIMESTAMPS = 50362  # of the English vocabulary
MAX_TOKENS = 224


def load() -> tuple[Mapping[str, Generate], dict[str, Any]]:
    """Load the checkpoint given on the command line."""
    import numpy as np
    import torch
    import transformers

    folder = sys.argv[1]
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = ("decoder_start_token_id", "eos_token_id", "pad_token_id", "bos_token_id")
    described = json.loads(Path(folder, "config.json").read_text())
    model.generation_config.update(**{name: described[name] for name in tokens}, no_timestamps_token_id=NO_TIMESTAMPS)
    extract = transformers.WhisperFeatureExtractor()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")

    def samples(path: str) -> Any:
        with wave.open(path) as file:
            return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768

    def heard(paths: Any) -> list[str]:
        sounds = [samples(path) for path in paths]
        features = extract(sounds, sampling_rate=16_000, return_tensors="pt").input_features
        with torch.inference_mode():
            ids = model.generate(features, do_sample=False, max_new_tokens=MAX_TOKENS)
        return [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]

    best: dict[int, int] = {}  # batch size by number of files

    def in_batches(paths: Any, size: int) -> list[str]:
        return [text for start in range(0, len(paths), size) for text in heard(paths[start : start + size])]

    def transcribe(paths: Any, _: int) -> dict[str, Any]:
        if len(paths) not in best:
            times = {}
            for size in (size for size in BATCH_SIZES if size <= len(paths)):
                began_s = time.perf_counter()
                in_batches(paths, size)
                times[size] = time.perf_counter() - began_s
            best[len(paths)] = min(times, key=times.__getitem__) if times else len(paths)
        began_s = time.perf_counter()
        texts = in_batches(paths, best[len(paths)])
        return {"texts": texts, "seconds": time.perf_counter() - began_s}

    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return {"transcribe": transcribe}, versions


if __name__ == "__main__":
    run_worker(load)
