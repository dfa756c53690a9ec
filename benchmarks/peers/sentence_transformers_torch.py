"""sentence-transformers on torch, without HTTP: in batches of the best order, and in fixed windows as they arrive.

python -m benchmarks.peers.sentence_transformers_torch CHECKPOINT
"""

import functools
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.peers.padded import encode_in_windows, encode_sorted
from benchmarks.peers.worker import Generate, run_worker


def load() -> tuple[Mapping[str, Generate], dict[str, Any]]:
    """Load the checkpoint given on the command line, in float32."""
    import sentence_transformers
    import torch

    model = sentence_transformers.SentenceTransformer(sys.argv[1], device="cpu").eval()

    def forward(token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        features = {"input_ids": torch.from_numpy(token_ids), "attention_mask": torch.from_numpy(mask)}
        with torch.inference_mode():
            return model(features)["sentence_embedding"].numpy()

    versions = {"torch": torch.__version__, "sentence_transformers": sentence_transformers.__version__}
    tasks = {
        "encode": functools.partial(encode_sorted, forward),
        "windows": functools.partial(encode_in_windows, forward),
    }
    return tasks, {**versions, "threads": torch.get_num_threads()}


if __name__ == "__main__":
    run_worker(load)
