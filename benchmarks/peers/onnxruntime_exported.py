"""onnxruntime on the model that torch exports, in float32, without HTTP: in batches of the best order.

python -m benchmarks.peers.onnxruntime_exported CHECKPOINT ONNX_FILE
"""

import functools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.padded import encode_sorted
from benchmarks.peers.worker import Generate, run_worker

INPUTS = ("input_ids", "attention_mask")


def load() -> tuple[Mapping[str, Generate], dict[str, Any]]:
    """Load the checkpoint given on the command line; export it if the file does not exist."""
    import onnxruntime

    checkpoint, file = sys.argv[1], Path(sys.argv[2])
    if not file.exists():
        _export(checkpoint, file)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = os.cpu_count() or 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def forward(token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        [hidden] = session.run(None, dict(zip(INPUTS, (token_ids, mask), strict=True)))
        weights = mask[..., None].astype(np.float32)
        vectors = (hidden * weights).sum(1) / weights.sum(1)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    facts = {"onnxruntime": onnxruntime.__version__, "threads": options.intra_op_num_threads}
    return {"encode": functools.partial(encode_sorted, forward)}, facts


def _export(checkpoint: str, file: Path) -> None:
    """Write the hidden states of the last layer as an ONNX model with free batch and length."""
    import torch
    import transformers

    model = transformers.AutoModel.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager").eval()

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    token_ids = torch.randint(1000, 2000, (2, 16))
    axes = {name: {0: "text", 1: "token"} for name in (*INPUTS, "hidden")}
    with torch.inference_mode():
        torch.onnx.export(
            Hidden().eval(),
            (token_ids, torch.ones_like(token_ids)),
            str(file),
            input_names=list(INPUTS),
            output_names=["hidden"],
            dynamic_axes=axes,
            dynamo=False,
        )


if __name__ == "__main__":
    run_worker(load)
