"""faster-whisper on CTranslate2, greedy, in float32, no HTTP.

    python -m benchmarks.peers.faster_whisper_calls FOLDER THREADS WORKERS

`transcribe` calls it once for each file, all at the same time; `batch` has CTranslate2 decode one window of each file
in one batch, from features that are made before the time is taken.
"""

import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.peers.worker import Generate, run_worker

PROMPT = ["<|startoftranscript|>"]
MAX_TOKENS = 224


def load() -> tuple[Mapping[str, Generate], dict[str, Any]]:
    """Load the model of the command line."""
    import ctranslate2
    import faster_whisper
    import numpy as np

    folder, num_threads, num_workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    model = faster_whisper.WhisperModel(
        folder, device="cpu", compute_type="float32", cpu_threads=num_threads, num_workers=num_workers
    )

    def text(path: str) -> str:
        segments, _ = model.transcribe(path, language="en", beam_size=1, best_of=1)
        return "".join(segment.text for segment in segments).strip()

    def transcribe(paths: Any, _: int) -> dict[str, Any]:
        with ThreadPoolExecutor(len(paths)) as threads:
            return {"texts": list(threads.map(text, paths))}

    def batch(paths: Any, _: int) -> dict[str, Any]:
        sounds = [faster_whisper.decode_audio(path) for path in paths]
        features = np.stack([faster_whisper.audio.pad_or_trim(model.feature_extractor(sound)) for sound in sounds])
        view = ctranslate2.StorageView.from_array(features)
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        found = model.model.generate(view, [PROMPT] * len(paths), beam_size=1, max_length=MAX_TOKENS * 2)
        seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        ids = [
            [i for i in each.sequences_ids[0] if i < model.hf_tokenizer.token_to_id("<|endoftext|>")] for each in found
        ]
        return {"texts": [model.hf_tokenizer.decode(each).strip() for each in ids], "seconds": seconds, "cpu_s": cpu_s}

    versions = {"faster-whisper": faster_whisper.__version__, "ctranslate2": ctranslate2.__version__}
    return {"transcribe": transcribe, "batch": batch}, versions


if __name__ == "__main__":
    run_worker(load)
