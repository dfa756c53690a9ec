"""Prefill steps of an 8B model against the matmul peak of the same run."""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.device_check.report import Row, write_part
from benchmarks.device_decode import LLAMA_8B, PAGE_SIZE, TINY, random_weights
from service.compile.aot import compile_programs
from service.device.mesh import DeviceMesh
from service.engine.runner import Runner
from service.engine.shapes import EngineShapes
from service.engine.steps.inputs import empty_step
from service.engine.steps.keys import SingleProgram, step_keys
from service.engine.steps.programs import engine_programs
from service.kernels.choice import HeadShape, choose_kernel
from service.kernels.products.linear import choose_products
from service.models.decoder import Decoder
from service.models.description import DecoderConfig
from service.models.registry import read_config
from service.models.weight_shapes import weight_shapes

LEAST_SHARE = 0.5  # of the matmul peak
TOKENS, TINY_TOKENS = (512, 2048), (64,)
PEAK_SIZE, TINY_PEAK_SIZE = 8192, 256
ROUNDS, STEPS = 5, 4
DTYPE = np.dtype(jnp.bfloat16)


def main(out: Path, *, is_tiny: bool) -> None:
    """Measure a prompt of each length."""
    peak = _matmul_peak(TINY_PEAK_SIZE if is_tiny else PEAK_SIZE)
    config = read_config("device check", TINY if is_tiny else LLAMA_8B)
    rows = [_measure(config, num_tokens, peak, is_tiny=is_tiny) for num_tokens in (TINY_TOKENS if is_tiny else TOKENS)]
    write_part(out, "prefill", rows)


def _measure(config: DecoderConfig, num_tokens: int, peak: float, *, is_tiny: bool) -> Row:
    mesh = DeviceMesh((jax.devices()[0],))
    choice = choose_kernel(mesh.devices[0], HeadShape(config.heads.num_kv_heads, config.heads.head_dim, DTYPE))
    shapes = EngineShapes(
        num_slots=1,
        num_pages=num_tokens // PAGE_SIZE,
        page_size=PAGE_SIZE,
        max_model_len=num_tokens,
        max_prefill_tokens=num_tokens,
    )
    model = Decoder(config, DTYPE, choice.kernel(), choose_products(mesh, DTYPE), mesh=mesh)
    bucket = max(shapes.prompt_buckets)
    groups = model.layer_groups
    needed = {str(key) for key in (SingleProgram.INITIAL_STATE, *step_keys(bucket, groups, shapes))}
    programs = engine_programs(model, shapes, weight_shapes(model.weight_specs(), mesh))
    compiled = compile_programs([program for program in programs if program.name in needed], num_threads=2)
    executables = {name: program.executable for name, program in compiled.items()}
    runner = Runner(shapes, model.layer_groups, random_weights(model), executables)
    inputs = empty_step(bucket, shapes)
    inputs.row_starts[:] = np.arange(bucket.num_rows) * shapes.row_tokens
    inputs.row_tokens[:] = shapes.row_tokens
    inputs.page_table[1:, : shapes.num_pages] = np.random.RandomState(0).permutation(shapes.num_pages)
    step_s = _median_s(lambda: [runner.run_model(bucket, inputs) for _ in range(STEPS)][-1]) / STEPS
    share = _flops(config, num_tokens) / step_s / peak
    return {
        "check": f"a prompt of {num_tokens} tokens",
        "passed": is_tiny or share >= LEAST_SHARE,
        "ms": round(step_s * 1e3, 2),
        "tokens/s": round(num_tokens / step_s),
        "matmul peak, TFLOP/s": round(peak / 1e12, 2),
        "of the peak": round(share, 3),
        "bound": "" if is_tiny else LEAST_SHARE,
    }


def _flops(config: DecoderConfig, num_tokens: int) -> float:
    """Return the multiplications and additions of layers, and of causal attention; one row of logits is little."""
    attention, mlp_size = config.heads, sum(config.layers[0].feed_forward.widths)
    heads = attention.num_heads * attention.head_dim
    of_token = config.hidden_size * (2 * heads + 2 * attention.num_kv_heads * attention.head_dim + 3 * mlp_size)
    return config.num_layers * (2.0 * of_token * num_tokens + 2.0 * heads * num_tokens**2)


def _matmul_peak(size: int) -> float:
    """Return the operations per second of a product of two square matrices in bfloat16."""
    # Ones are multiplied up to 13 % faster than random numbers.
    left, right = (jax.random.normal(key, (size, size), DTYPE) for key in jax.random.split(jax.random.key(0)))
    product = jax.jit(jnp.matmul)
    return 2.0 * size**3 / _median_s(lambda: product(left, right))


def _median_s(run: Callable[[], object]) -> float:
    def seconds() -> float:
        began_s = time.perf_counter()
        jax.block_until_ready(run())
        return time.perf_counter() - began_s

    return statistics.median([seconds() for _ in range(1 + ROUNDS)][1:])  # the first warms up


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_tiny="--tiny" in sys.argv)
