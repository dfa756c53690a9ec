"""Compile a step of prefill and one of decode for a machine that is not there, and print what XLA made of them.

A process of its own, in an environment that has the target's compiler:

    .tools/targets/tpu/bin/python -m tests.device_targets.compile_steps v6e-1 "Llama 3.1 8B" int8 4 16 int8

The last arguments are KV_DTYPE, MAX_LORAS, MAX_NUM_SEQS and QUANTIZATION.

Sizes are planned for the whole model. Of its layers few are compiled, since all of them share executables, some at a
time; where all of a decode step is one program, that has all layers if it chooses the likeliest tokens.
"""

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np

from scripts.memory_table import IN_4_BITS, MODELS
from service.compile.aot import compile_programs
from service.compile.program import Executable, Program
from service.device.memory import usable_memory_bytes
from service.engine.shapes import Bucket
from service.engine.steps.keys import Sample, Sampler, SingleProgram, Whole, samplers, step_keys
from service.models.weight_spec import device_bytes as weight_bytes
from service.settings import Settings
from service.start.devices import use_target
from service.start.kinds.engine_spec import EngineSpec, choose_engine_spec
from tests.device_targets.hlo import copies_of_arguments, count_instructions, count_kernels, host_transfers

NUM_LAYERS = {"Qwen3.5": 4}  # with one that attends, where others keep a state; else two
SMALLEST_WEIGHT_BYTES = 2**20


def main(
    target: str,
    model: str,
    kv_dtype: str = "auto",
    max_loras: str = "0",
    num_seqs: str = "64",
    quantization: str = "none",
) -> None:
    """Compile, and print a line of JSON."""
    devices = use_target(target).devices
    located = SimpleNamespace(uri=model, hub_config=dict(MODELS[model]), layout=None, is_as_saved=True, draft=None)
    settings = Settings(
        max_num_seqs=int(num_seqs),
        max_concurrent_requests=64,
        kv_dtype=kv_dtype,
        max_loras=int(max_loras),
        quantization="int4" if model.endswith(IN_4_BITS) else quantization,
    )
    spec = choose_engine_spec(settings, located, devices)
    num_layers = next((number for name, number in NUM_LAYERS.items() if model.startswith(name)), 2)
    buckets = spec.shapes.decode_buckets
    smallest, largest = (whole_step_of(spec, bucket) for bucket in (min(buckets), max(buckets)))
    programs = [*steps_of(few_layers(spec, num_layers)), *largest]
    compiled = compile_programs([*programs, *smallest], num_threads=2)
    report = {
        "kernel": spec.kernel.name,
        "num_devices": spec.mesh.num_devices,
        "max_model_len": spec.shapes.max_model_len,
        "planned_bytes": spec.memory_bytes,
        "usable_bytes": usable_memory_bytes(spec.mesh.devices),
        "weights_bytes": spec.weights_bytes,
        "layer_fraction": num_layers / spec.config.num_layers,
        "kernels": [
            count_kernels(compiled[program.name].executable.compiled.as_text()) for program in (*smallest, *largest)
        ],
        "of_one_sequence": [facts_of(program, compiled[program.name].executable) for program in smallest],
        "serialized_bytes": sum(len(made.executable.serialize()) for made in compiled.values()),
        "programs": {program.name: facts_of(program, compiled[program.name].executable) for program in programs},
    }
    sys.stdout.write(json.dumps(report) + "\n")


def few_layers(spec: EngineSpec, num_layers: int) -> EngineSpec:
    """The same engine with a part of its layers."""
    others = tuple(f"layers.{layer}." for layer in range(num_layers, spec.config.num_layers))
    specs = tuple(weight for weight in spec.specs if not weight.name.startswith(others))
    return replace(spec, config=replace(spec.config, layers=spec.config.layers[:num_layers]), specs=specs)


def steps_of(spec: EngineSpec) -> list[Program]:
    """The programs of the largest step of either kind, and those that only some requests need."""
    shapes, groups = spec.shapes, spec.layer_groups
    decode = max(shapes.decode_buckets)
    keys = [
        *step_keys(max(shapes.prompt_buckets), groups, shapes),
        *step_keys(decode, groups, shapes),
        *(Whole(sampler, decode) for sampler in (Sampler.TOP_P, Sampler.RANDOM)),
        *(Sample(sampler, shapes.num_slots) for sampler in samplers(shapes)),
        SingleProgram.INITIAL_STATE,
        SingleProgram.COUNT_TOKENS,
    ]
    names = set(map(str, keys))
    return [program for program in spec.programs(spec.model()) if program.name in names]


def whole_step_of(spec: EngineSpec, bucket: Bucket) -> list[Program]:
    """A decode step as one program, with all layers; none where its parts are programs of their own."""
    name = str(Whole(Sampler.GREEDY, bucket))
    return [program for program in spec.programs(spec.model()) if program.name == name]


def facts_of(program: Program, executable: Executable) -> dict:
    """What XLA made of a program."""
    text, memory = executable.compiled.as_text(), executable.compiled.memory_analysis()
    constants, state = jax.tree.leaves(program.constants), jax.tree.leaves(program.state)
    changed = [state[i] for i in executable.state_leaves]
    kept = [constants[i] for i in executable.constant_leaves] + [state[i] for i in executable.read_leaves]
    operations = count_instructions(text)
    return {
        "conditionals": operations["conditional"],
        "rematerialized": text.count(".remat"),
        "unbounded_loops": operations["while"] - text.count("known_trip_count"),
        "host_transfers": host_transfers(text),
        "large_copies": copies_of_arguments(text, SMALLEST_WEIGHT_BYTES),
        "argument_bytes": memory.argument_size_in_bytes,
        "needed_argument_bytes": sum(map(device_bytes, [*kept, *changed, *jax.tree.leaves(program.inputs)])),
        "changed_bytes": sum(map(device_bytes, changed)),
        "aliased_bytes": memory.alias_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "temp_bytes": memory.temp_size_in_bytes,
    }


def device_bytes(leaf: jax.ShapeDtypeStruct) -> int:
    """The size of one device's part of an array."""
    shape = leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape)
    return weight_bytes(shape, np.dtype(leaf.dtype))


if __name__ == "__main__":
    main(*sys.argv[1:])
