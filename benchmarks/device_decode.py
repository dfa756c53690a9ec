"""Decode steps against the memory bandwidth of the device: milliseconds of a compiled step, and the bytes it reads.

A model of Llama 3 8B's shape in bfloat16, with random weights made on the device, runs the engine's decode steps,
sampling included, over sequences whose positions are all cached. Each step reads every weight except the embedding
table, and the keys and values of every position. The bandwidth is that of copying a large array in the same run.

    python -m benchmarks.device_decode                  # on a GPU or a TPU, a minute
    python -m benchmarks.device_decode --tiny           # tests the benchmark itself, on any machine
"""

import argparse
import functools
import json
import math
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.machine import describe_machine
from service.compile.aot import compile_programs
from service.device.memory import ACCELERATOR_FRACTION, usable_memory_bytes
from service.device.mesh import DeviceMesh
from service.engine.runner import Runner
from service.engine.shapes import Bucket, EngineShapes
from service.engine.steps.inputs import StepInputs, empty_step
from service.engine.steps.keys import Hidden, ProgramKey, Sample, Sampler, SingleProgram, Whole, step_keys
from service.engine.steps.programs import engine_programs
from service.kernels.choice import HeadShape, KernelChoice, choose_kernel
from service.kernels.limits import vector_bytes
from service.kernels.products.linear import choose_products
from service.kernels.products.quantized import choose_fp8_products
from service.models.decoder import Decoder
from service.models.description import DecoderConfig
from service.models.quantization import Quantization, kept_storage
from service.models.registry import read_config
from service.models.weight_shapes import weight_shapes
from service.models.weight_spec import INT4, device_bytes
from service.settings.compiler import size_gpu_pool

# Source: config.json of meta-llama/Llama-3.1-8B.
LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}
TINY = LLAMA_8B | {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}
# As AutoAWQ writes it.
AWQ = {
    "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
}
PAGE_SIZE = 16
ROUNDS = 5  # rounds; the median is reported
COPY_BYTES = 2**31
COPIES = 8
TINY_COPY_BYTES = 2**24


def main(arguments: list[str]) -> None:
    """Measure every batch size and print the results as JSON."""
    options = _parse(arguments)
    size_gpu_pool(ACCELERATOR_FRACTION)
    device = jax.devices()[0]
    four_bits = AWQ if options.quantization is Quantization.INT4 else {}
    config = read_config("benchmark", (TINY if options.tiny else LLAMA_8B) | four_bits)
    storage = kept_storage(config.layer_storage, options.quantization, device.platform)
    config = replace(config, layer_storage=storage)
    dtype = np.dtype(jnp.bfloat16)
    kv_dtype = np.dtype(jnp.dtype(options.kv_dtype))
    choice = choose_kernel(device, HeadShape(config.heads.num_kv_heads, config.heads.head_dim, dtype, kv_dtype))
    bytes_per_s = _copy_bytes_per_s(TINY_COPY_BYTES if options.tiny else COPY_BYTES)
    batches = [
        _measure(config, dtype, choice, batch=batch, options=options, copy_bytes_per_s=bytes_per_s)
        for batch in map(int, options.batches.split(","))
    ]
    report = {
        "device": {"platform": device.platform, "kind": device.device_kind},
        "machine": describe_machine(),
        "model": TINY if options.tiny else LLAMA_8B,
        "sampler": options.sampler,
        "quantization": options.quantization.value,
        "kv_dtype": options.kv_dtype,
        "kernel": choice.name.value,
        "kernel_obstacle": choice.obstacle,
        "context": options.context,
        "page_size": options.page_size,
        "copy_gb_per_s": round(bytes_per_s / 1e9, 1),
        "longest": options.longest,
        "batches": batches,
    }
    text = json.dumps(report, indent=2)
    print(text)
    if options.out is not None:
        options.out.write(text + "\n")


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="use a tiny model, to test the benchmark itself")
    parser.add_argument("--batches", default="1,32", help="sequences per step")
    parser.add_argument("--context", type=int, default=1024, help="cached positions per sequence")
    parser.add_argument(
        "--longest", type=int, help="cached positions of the first sequence; those of the others if unset"
    )
    parser.add_argument("--steps", type=int, default=32, help="decode steps per round")
    parser.add_argument("--mixed", action="store_true", help="cache an eighth to all of --context, by sequence")
    parser.add_argument(
        "--sampler", default="greedy", help="greedy, random or top-p; general where that is the only one"
    )
    parser.add_argument("--in-parts", action="store_true", help="run a step in parts, also where the engine does not")
    parser.add_argument("--profile", help="also profile a round of steps into this folder")
    parser.add_argument("--page-size", type=int, default=PAGE_SIZE, help="token positions per page")
    parser.add_argument("--quantization", type=Quantization, default=Quantization.NONE, choices=list(Quantization))
    parser.add_argument("--kv-dtype", default="bfloat16", help="bfloat16, int8 or float8_e4m3fn")
    parser.add_argument("--out", type=argparse.FileType("w"), help="also write the JSON to this file")
    return parser.parse_args(arguments)


def _measure(
    config: DecoderConfig,
    dtype: np.dtype,
    choice: KernelChoice,
    *,
    batch: int,
    options: argparse.Namespace,
    copy_bytes_per_s: float,
) -> dict[str, Any]:
    """Return the figures of one batch size."""
    mesh = DeviceMesh((jax.devices()[0],))
    cached = np.linspace(options.context // 8 if options.mixed else options.context, options.context, batch).astype(int)
    cached[0] = options.longest or cached[0]
    held = -(-(cached + options.steps) // options.page_size)  # pages of each sequence
    shapes = EngineShapes(
        num_slots=batch,
        num_pages=int(held.sum()),
        page_size=options.page_size,
        max_model_len=int(held.max()) * options.page_size,
        max_prefill_tokens=64,
        has_sampling_variants=not mesh.is_host,
        has_whole_steps=mesh.prefers_whole_steps and not options.in_parts,
    )
    kv_dtype = np.dtype(jnp.dtype(options.kv_dtype))
    products, fp8 = choose_products(mesh, dtype), choose_fp8_products(mesh)
    model = Decoder(config, dtype, choice.kernel(), products, options.quantization, mesh, kv_dtype, fp8)
    weights_bytes = sum(device_bytes(spec.shape, spec.dtype) for spec in model.weight_specs())
    page_bytes = config.kv_bytes_per_token(lambda of: of.num_kv_heads * vector_bytes(of.head_dim, kv_dtype))
    needed_bytes = weights_bytes + shapes.num_pages * shapes.page_size * page_bytes
    if needed_bytes > usable_memory_bytes(mesh.devices):
        return {"batch": batch, "needed_gb": round(needed_bytes / 1e9, 2)}
    weights = random_weights(model)
    bucket = Bucket(batch, 0)
    programs = engine_programs(model, shapes, weight_shapes(model.weight_specs(), mesh))
    sampler = Sampler(options.sampler) if shapes.has_sampling_variants else Sampler.GENERAL
    parts: set[ProgramKey] = {Sample(sampler, batch), *step_keys(bucket, model.layer_groups, shapes)}
    step = parts
    if shapes.has_whole_steps:
        step = {Hidden(bucket), Sample(sampler, batch)} if sampler is Sampler.GENERAL else {Whole(sampler, bucket)}
    needed = {str(key) for key in (SingleProgram.INITIAL_STATE, *step)}
    compiled = compile_programs([program for program in programs if program.name in needed], num_threads=2)
    executables = {name: program.executable for name, program in compiled.items()}
    runner = Runner(shapes, model.layer_groups, weights, executables)
    inputs = [_inputs(shapes, bucket, cached + step, held) for step in range(options.steps)]

    def run_round() -> float:
        started = time.perf_counter()
        sampled: Any = None
        for inputs_of_step in inputs:
            sampled = runner.decode(bucket, inputs_of_step, sampler)
        np.asarray(sampled.token_ids)
        return (time.perf_counter() - started) / options.steps

    seconds = [run_round() for _ in range(1 + ROUNDS)]
    step_s = statistics.median(seconds[1:])  # the first round warms up
    if options.profile:
        with jax.profiler.trace(options.profile):
            run_round()
    weight_bytes = sum(
        device_bytes(spec.shape, spec.dtype)
        for spec in model.weight_specs()
        if spec.name != "embed" or config.has_tied_embeddings
    )
    num_read = int(cached.sum()) + batch * (options.steps // 2)  # cached positions, in a step
    kv_bytes = page_bytes * num_read
    return {
        "batch": batch,
        "ms_per_step": round(step_s * 1e3, 3),
        "ms_per_step_rounds": [round(s * 1e3, 3) for s in seconds[1:]],
        "tokens_per_s": round(batch / step_s, 1),
        "programs_per_step": len(step) if shapes.has_whole_steps else len(model.layer_groups) + len(parts) - 1,
        "weight_bytes_per_step": weight_bytes,
        "kv_bytes_per_step": kv_bytes,
        "gb_per_s": round((weight_bytes + kv_bytes) / step_s / 1e9, 1),
        "share_of_copy_bandwidth": round((weight_bytes + kv_bytes) / step_s / copy_bytes_per_s, 3),
        "compile_seconds": round(sum(program.seconds for program in compiled.values()), 1),
    }


def random_weights(model: Decoder) -> Mapping[str, jax.Array]:
    """Make the weights on the device one by one, so that there are never two copies of all of them."""

    @functools.partial(jax.jit, static_argnames=("shape", "dtype"))
    def random_weight(key: jax.Array, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
        if dtype == INT4:
            return jax.random.randint(key, shape, -8, 8, np.int8).astype(jnp.int4)
        if dtype == np.int8:
            return jax.random.randint(key, shape, -127, 128, dtype)
        return (jax.random.normal(key, shape, jnp.bfloat16) * 0.02).astype(dtype)

    specs = model.weight_specs()
    keys = jax.random.split(jax.random.key(0), len(specs))
    return {spec.name: random_weight(key, spec.shape, spec.dtype) for key, spec in zip(keys, specs, strict=True)}


def _inputs(shapes: EngineShapes, bucket: Bucket, positions: np.ndarray, held: np.ndarray) -> StepInputs:
    """Return the inputs of a decode step with a sequence in every slot, at its position, with shuffled pages."""
    inputs = empty_step(bucket, shapes)
    pages = np.random.RandomState(0).permutation(shapes.num_pages)
    inputs.starts[:], inputs.num_tokens[:], inputs.sampled[:] = positions, 1, positions + 1
    for row, own in zip(inputs.page_table, np.split(pages, np.cumsum(held)[:-1]), strict=True):
        row[: len(own)] = own
    return inputs


def _copy_bytes_per_s(num_bytes: int) -> float:
    """Return the bytes per second that device memory reads and writes while a large array is copied, often."""
    source = jnp.ones(num_bytes // 4, jnp.float32)
    copy = jax.jit(lambda x, offset: x + offset)  # with an addition, because XLA may drop a plain copy
    copy(source, 1.0).block_until_ready()
    best = math.inf
    for _ in range(5):
        started = time.perf_counter()
        # Dispatched ahead, so that no launch is waited for.
        jax.block_until_ready([copy(source, 1.0) for _ in range(COPIES)][-1])
        best = min(best, (time.perf_counter() - started) / COPIES)
    return 2 * source.nbytes / best


if __name__ == "__main__":
    main(sys.argv[1:])
