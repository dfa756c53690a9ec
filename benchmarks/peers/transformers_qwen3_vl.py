"""Qwen3-VL in transformers on torch, greedy, in float32, no HTTP, in batches of the size that is fastest here.

python -m benchmarks.peers.transformers_qwen3_vl CHECKPOINT

Each prompt shows one square image, which is not decoded: random patches are ready before the clock starts.
"""

import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.worker import Generate, run_worker

BATCH_SIZES = (4, 8)


def load() -> tuple[Mapping[str, Generate], dict[str, Any]]:
    """Load the checkpoint given on the command line."""
    import torch
    import transformers

    folder = sys.argv[1]
    model = transformers.Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    config = json.loads(Path(folder, "config.json").read_text())
    vision, image_id = config["vision_config"], config["image_token_id"]
    patch_values = vision["in_channels"] * vision["temporal_patch_size"] * vision["patch_size"] ** 2

    def batch(prompts: list[list[int]]) -> dict[str, Any]:
        ids = torch.tensor(prompts)
        edge = math.isqrt(prompts[0].count(image_id)) * vision["spatial_merge_size"]
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "pixel_values": torch.randn(len(prompts) * edge**2, patch_values),
            "image_grid_thw": torch.tensor([[1, edge, edge]] * len(prompts)),
            "mm_token_type_ids": (ids == image_id).long(),
        }

    def in_batches(prompts: list[list[int]], size: int, num_tokens: int) -> tuple[float, float]:
        """Return the seconds and the processor seconds that all prompts take."""
        batches = [batch(prompts[start : start + size]) for start in range(0, len(prompts), size)]
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        with torch.inference_mode():
            for inputs in batches:
                model.generate(**inputs, do_sample=False, min_new_tokens=num_tokens, max_new_tokens=num_tokens)
        return time.perf_counter() - began_s, time.process_time() - began_cpu_s

    best: list[int] = []

    def see(prompts: list[list[int]], num_tokens: int) -> dict[str, Any]:
        if not best:
            in_batches(prompts[: BATCH_SIZES[-1]], BATCH_SIZES[-1], num_tokens)
            times = {size: in_batches(prompts[: BATCH_SIZES[-1]], size, num_tokens)[0] for size in BATCH_SIZES}
            best.append(min(times, key=times.__getitem__))
        seconds, cpu_s = in_batches(prompts, best[0], num_tokens)
        return {"seconds": seconds, "cpu_s": cpu_s, "batch": best[0]}

    return {"see": see}, {"torch": torch.__version__, "transformers": transformers.__version__}


if __name__ == "__main__":
    run_worker(load)
