"""Warm starts in int8, each after its floor: jax imported, the device found, the checkpoint's bytes read."""

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks import timed_starts
from benchmarks.checkpoint import word_ids
from benchmarks.quantization.ways import INT8, way_settings
from benchmarks.quiet import Quiet
from benchmarks.rounds import say
from service.weights.quantization import quantize_rows

PROMPT_TOKENS = 16
OWN, WIDE = "of int8", "of bfloat16"  # checkpoints


def measure_starts(
    checkpoint: Path, options: argparse.Namespace, found: dict[str, Any], save: Callable[[], None]
) -> None:
    """Start once without a bundle, then time starts and floors alternately."""
    folder, prompt = checkpoint.parent / "quantization", word_ids(checkpoint)[:PROMPT_TOKENS]
    made = {
        OWN: _rewritten(checkpoint, folder / f"{checkpoint.name}-w8a8", is_int8=True),
        WIDE: _rewritten(checkpoint, folder / f"{checkpoint.name}-bfloat16", is_int8=False),
    }
    quiet, settings = Quiet((), options.patience, max_attempts=2), way_settings(INT8, is_quick=options.quick)
    for name, path in made.items():
        records = found.setdefault(name, [])
        cache = folder / f"start-{path.name}"
        say(f"starting without a bundle: a checkpoint {name}")
        timed_starts.levserve(str(path), cache, prompt, settings)
        for run in range(len(records), options.runs):
            floor, _ = quiet.measure(lambda path=path: timed_starts.floor(path))
            warm, _ = quiet.measure(
                lambda path=path, cache=cache: timed_starts.levserve(str(path), cache, prompt, settings)
            )
            records.append({"floor_s": floor["first_token_s"], "warm_s": warm["first_token_s"]})
            save()
            say(f"run {run + 1}/{options.runs} a checkpoint {name}: {records[-1]}")


def _rewritten(checkpoint: Path, folder: Path, *, is_int8: bool) -> Path:
    """Write a checkpoint in bfloat16, unless it exists; its layers in W8A8-int8 of compressed-tensors if asked.

    Source: https://github.com/vllm-project/compressed-tensors (`int-quantized`: `weight` beside `weight_scale`)
    """
    done = folder / "model.safetensors"  # written last
    if done.exists():
        return folder
    shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns(done.name), dirs_exist_ok=True)
    config = json.loads((checkpoint / "config.json").read_text()) | {"torch_dtype": "bfloat16"}
    tensors: dict[str, np.ndarray] = {}
    for name, tensor in load_file(checkpoint / done.name).items():
        if is_int8 and "_proj." in name:
            tensors[name], scales = quantize_rows(tensor)
            tensors[f"{name}_scale"] = scales[:, None]
        else:
            tensors[name] = tensor.astype(ml_dtypes.bfloat16)
    if is_int8:
        config["quantization_config"] = W8A8
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(tensors, folder / "unfinished", metadata={"format": "pt"})
    (folder / "unfinished").rename(done)
    return folder


_EIGHT_BITS = {"num_bits": 8, "type": "int", "symmetric": True}
W8A8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": _EIGHT_BITS | {"strategy": "channel", "dynamic": False},
            "input_activations": _EIGHT_BITS | {"strategy": "token", "dynamic": True},
        }
    },
}
