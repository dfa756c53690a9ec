"""The cost of adapters in decode steps: tokens per second against an engine without slots, in alternating rounds.

A model of SmolLM-135M's shape with random weights runs decode steps over one set of weights: of an engine without
slots for adapters, and of one with four of rank 16. Rounds of all cases alternate, so that what else the machine does
meets them alike; ratios are those of the medians, of wall time and of processor time.

    python -m benchmarks.adapters                  # on two cores, four minutes
    python -m benchmarks.adapters --tiny           # tests the benchmark itself
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks.device_decode import TINY, random_weights
from service.compile.aot import compile_programs
from service.device.mesh import DeviceMesh
from service.engine.request import Adapter
from service.engine.runner import Runner
from service.engine.shapes import Bucket, EngineShapes
from service.engine.steps.inputs import empty_step
from service.engine.steps.keys import Sample, Sampler, SingleProgram, WriteAdapter, distinct, step_keys
from service.engine.steps.programs import engine_programs
from service.kernels.choice import HeadShape, choose_kernel
from service.kernels.products.linear import choose_products
from service.models.adapter_arrays import AdapterShapes
from service.models.decoder import Decoder
from service.models.registry import read_config
from service.models.weight_shapes import weight_shapes

# Source: config.json of HuggingFaceTB/SmolLM-135M.
SMOLLM_135M = TINY | {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}
DTYPE = np.dtype(np.float32)
BATCH = 8
SLOTS = AdapterShapes(num_slots=4, rank=16)
CONTEXT = 64  # cached positions of each sequence
# By case: the number of sequences, and the slots of their adapters.
CASES: dict[str, tuple[int, list[int]]] = {
    "8, none": (8, [-1] * 8),
    "8, one": (8, [0] * 8),
    "8, four mixed": (8, [0, 1, 2, 3, 0, 1, 2, 3]),
    "1, none": (1, [-1]),
    "1, one": (1, [0]),
}


class Engine:
    """A runner of one model, with slots for adapters or without."""

    def __init__(self, model: Decoder, shapes: EngineShapes, weights: Any) -> None:
        """Compile what decode steps need."""
        mesh = DeviceMesh((jax.devices()[0],))
        keys = [SingleProgram.INITIAL_STATE]
        for count in (1, BATCH):
            keys += [Sample(Sampler.GENERAL, count), *step_keys(Bucket(count, 0), model.layer_groups, shapes)]
        keys += [WriteAdapter(group.kind) for group in distinct(model.layer_groups)]
        names = set(map(str, keys))
        programs = engine_programs(model, shapes, weight_shapes(model.weight_specs(), mesh))
        compiled = compile_programs([program for program in programs if program.name in names], num_threads=2)
        executables = {name: program.executable for name, program in compiled.items()}
        self.shapes = shapes
        self.runner = Runner(shapes, model.layer_groups, weights, executables)

    def round(self, count: int, slots: list[int], num_steps: int) -> tuple[float, float]:
        """Run decode steps, and return the seconds of a step, of wall time and of processor time."""
        bucket = Bucket(count, 0)
        inputs = empty_step(bucket, self.shapes)
        pages = np.arange(self.shapes.num_pages, dtype=np.int32).reshape(BATCH, -1)
        inputs.starts[:], inputs.num_tokens[:], inputs.sampled[:] = CONTEXT, 1, CONTEXT + 1
        inputs.page_table[:, : pages.shape[1]] = pages[:count]
        if inputs.adapters is not None:
            inputs.adapters[:] = slots
        sampled: Any = None
        began, began_cpu = time.perf_counter(), time.process_time()
        for _ in range(num_steps):
            sampled = self.runner.decode(bucket, inputs, Sampler.GENERAL)
            np.asarray(sampled.token_ids)
        elapsed = time.perf_counter() - began
        return elapsed / num_steps, (time.process_time() - began_cpu) / num_steps


def main(arguments: list[str]) -> None:
    """Measure every case and print the ratios as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="use a tiny model, to test the benchmark itself")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=20, help="decode steps in a round of a case")
    options = parser.parse_args(arguments)
    mesh = DeviceMesh((jax.devices()[0],))
    config = read_config("benchmark", TINY if options.tiny else SMOLLM_135M)
    kernel = choose_kernel(mesh.devices[0], HeadShape(config.heads.num_kv_heads, config.heads.head_dim, DTYPE)).kernel()
    products = choose_products(mesh, DTYPE)

    def engine(adapters: AdapterShapes | None, weights: Any) -> Engine:
        shapes = EngineShapes(
            num_slots=BATCH,
            num_pages=BATCH * 8,
            page_size=16,
            max_model_len=128,
            max_prefill_tokens=64,
            skips_padding=True,
            has_sampling_variants=False,
            adapters=adapters,
        )
        return Engine(Decoder(config, DTYPE, kernel, products, mesh=mesh, adapters=adapters), shapes, weights)

    weights = dict(random_weights(Decoder(config, DTYPE, kernel, products, mesh=mesh), DTYPE))
    without, with_slots = engine(None, weights), engine(SLOTS, weights)
    random = np.random.RandomState(0)
    groups = with_slots.runner.adapter_slots
    for slot in range(SLOTS.num_slots):
        arrays = tuple(
            tuple((random.randn(*array.shape[1:]) * 0.01).astype(DTYPE) for array in group) for group in groups
        )
        with_slots.runner.write_adapter(slot, Adapter(f"{slot}", b"", arrays))

    runs: dict[str, Callable[[], tuple[float, float]]] = {}
    for name, (count, slots) in CASES.items():
        runs[name] = lambda count=count, slots=slots: with_slots.round(count, slots, options.steps)
    for count in (8, 1):
        runs[f"{count}, without"] = lambda count=count: without.round(count, [], options.steps)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for number in range(options.rounds + 1):
        for name in sorted(runs, reverse=bool(number % 2)):
            measured = runs[name]()
            if number > 0:  # the first warms up
                seconds[name].append(measured)
    medians = {
        name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in seconds.items()
    }
    report = {
        name: {
            "ms": round(wall * 1e3, 2),
            "speed": round(medians[f"{name[0]}, without"][0] / wall, 3),
            "speed_by_processor_time": round(medians[f"{name[0]}, without"][1] / cpu, 3),
        }
        for name, (wall, cpu) in medians.items()
    }
    report["four mixed / one"] = {
        "speed": round(medians["8, one"][0] / medians["8, four mixed"][0], 3),
        "speed_by_processor_time": round(medians["8, one"][1] / medians["8, four mixed"][1], 3),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
