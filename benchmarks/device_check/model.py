"""The model of the checks that serve: Llama 3.1 8B's shape with random weights, made on the device, and a tokenizer.

It is written by a process of its own, so that the device's memory is free when the service starts.
"""

import itertools
import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from benchmarks.checkpoint import LLAMA_1B, LLAMA_8B, TINY, Geometry, make_checkpoint
from benchmarks.device_check.report import write_part
from service.device.memory import ACCELERATOR_FRACTION, usable_memory_bytes
from service.models.decoder_weights import decoder_weight_specs
from service.models.registry import read_config
from service.settings.compiler import size_gpu_pool

FOLDER = "model"
SMALLEST_OF_8B = 18e9  # bytes that a device must have for the weights and some cache
TENSORS_OF_FILE = 64


def main(out: Path, *, is_tiny: bool) -> None:
    """Write the largest of the models that the device can serve."""
    began_s = time.perf_counter()
    size_gpu_pool(ACCELERATOR_FRACTION)
    is_large = usable_memory_bytes(jax.devices()[:1]) >= SMALLEST_OF_8B and jax.devices()[0].platform != "cpu"
    name, geometry = ("tiny", TINY) if is_tiny else ("8B", LLAMA_8B) if is_large else ("1B", LLAMA_1B)
    folder = make_checkpoint(out / FOLDER, geometry, write_bfloat16)
    num_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    seconds = round(time.perf_counter() - began_s, 1)
    write_part(out, "model", [{"check": name, "passed": True, "GB": round(num_bytes / 1e9, 2), "seconds": seconds}])


def write_bfloat16(folder: Path, geometry: Geometry) -> None:
    """Write `config.json` and files of bfloat16 tensors, which are made on the device."""
    folder.mkdir(parents=True, exist_ok=True)
    config = geometry.hub_config("bfloat16")
    (folder / "config.json").write_text(json.dumps(config))
    sources = {
        source.name: source.shape
        for spec in decoder_weight_specs(read_config("device check", config))
        for source in spec.sources
    }
    make = jax.jit(lambda key, shape: jax.random.normal(key, shape, jnp.bfloat16) * 0.02, static_argnames="shape")
    keys = iter(jax.random.split(jax.random.key(0), len(sources)))
    files: dict[str, str] = {}
    for number, part in enumerate(itertools.batched(sources.items(), TENSORS_OF_FILE)):
        tensors = {
            name: np.asarray(make(next(keys), shape) if len(shape) > 1 else jnp.ones(shape, jnp.bfloat16))
            for name, shape in part
        }
        file = f"model-{number:05}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        files |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_tiny="--tiny" in sys.argv)
