"""Compile two products for an H100 that is not there, with a folder of tunings, and print their kernels as JSON.

.tools/targets/gpu/bin/python -m tests.device_targets.compile_tuned FOLDER
"""

import json
import logging
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from service.compile.aot import compile_programs
from service.compile.program import Program
from service.device import tunings
from service.start.devices import use_target

TOKENS = {"tuned": 512, "untuned": 64}
NUM_IN, NUM_OUT = 2048, 8192
TILE = re.compile(r'"output_tiles":\[\{"sizes":\["(\d+)","(\d+)"')


def main(folder: Path) -> None:
    """Compile, and print a line of JSON."""
    tunings.FOLDER = folder
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sharding = SingleDeviceSharding(use_target("h100").devices[0])

    def shape(*sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, jnp.bfloat16, sharding=sharding)

    programs = [
        Program(name, lambda weight, state, x: (state, x @ weight.T), shape(NUM_OUT, NUM_IN), (), shape(size, NUM_IN))
        for name, size in TOKENS.items()
    ]
    texts = {
        name: made.executable.compiled.as_text() for name, made in compile_programs(programs, num_threads=2).items()
    }
    report = {
        name: {
            "tiles": [list(map(int, tile)) for tile in TILE.findall(text)],
            "cublas": text.count("__cublas$lt$matmul"),
        }
        for name, text in texts.items()
    }
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
