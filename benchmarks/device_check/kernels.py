"""The device's attention kernel against the reference in float32: dtypes, head sizes, groups, long contexts."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import DTypeLike

from benchmarks.device_check.report import Row, write_part
from service.device.mesh import DeviceMesh
from service.kernels.attention import Scoring
from service.kernels.choice import HeadShape, choose_kernel
from service.kernels.products.grouped import grouped_linear
from service.kernels.products.linear import choose_products
from service.kernels.products.quantized import QuantizedWeight, choose_fp8_products
from service.kernels.self_check import TOLERANCES, Case, largest_difference

CHUNK = 512
BFLOAT16 = Case(np.dtype("bfloat16"), num_kv_heads=2, group=4, head_dim=128, chunk=CHUNK, num_chunks=2)
CASES = (
    *(replace(BFLOAT16, dtype=np.dtype(dtype)) for dtype in TOLERANCES),
    *(replace(BFLOAT16, head_dim=head_dim) for head_dim in (64, 80, 96, 256)),
    *(replace(BFLOAT16, group=group) for group in (1, 3, 7, 8)),
    replace(BFLOAT16, num_chunks=32_768 // CHUNK),
    # One long sequence among short ones, and as many splits as make several for a program.
    replace(BFLOAT16, num_chunks=8192 // CHUNK, num_seqs=8, shorter=CHUNK - 4),
    replace(BFLOAT16, num_chunks=8192 // CHUNK, num_seqs=8),
    replace(BFLOAT16, head_dim=256, looks_ahead=True, scoring=Scoring(256**-0.5, sliding_window=1024)),
    # Caches of 8 bits, which the kernel quantizes and writes itself.
    *(replace(BFLOAT16, cached_dtype=np.dtype(dtype)) for dtype in (np.int8, jnp.float8_e4m3fn)),
    replace(BFLOAT16, cached_dtype=np.dtype(np.int8), num_chunks=8192 // CHUNK, num_seqs=8, shorter=CHUNK - 4),
    # As gpt-oss and Gemma 2 have them.
    replace(BFLOAT16, head_dim=64, group=8, has_sinks=True),
    replace(BFLOAT16, head_dim=64, group=8, has_sinks=True, scoring=Scoring(64**-0.5, sliding_window=128)),
    replace(BFLOAT16, head_dim=256, scoring=Scoring(256**-0.5, soft_cap=50.0)),
    replace(BFLOAT16, num_chunks=8192 // CHUNK, scoring=Scoring(128**-0.5, sliding_window=1000)),
)
NUM_EXPERTS, IN_SIZE, OUT_SIZE = 32, 512, 384
EXPERT_DTYPES, EXPERT_ROWS = ("bfloat16", "int8", "float8_e4m3fn"), (8, 128, 2048)
TINY_CASES = tuple(
    Case(np.dtype(dtype), num_kv_heads=2, group=3, head_dim=head_dim)
    for dtype, head_dim in product(("float32", "bfloat16"), (64, 80))
)


def main(out: Path, *, is_tiny: bool) -> None:
    """Check every case."""
    rows = [_check(case) for case in (TINY_CASES if is_tiny else CASES)]
    write_part(out, "kernels", rows)
    numbers = EXPERT_ROWS[:1] if is_tiny else EXPERT_ROWS
    rows += [_check_experts(dtype, number) for dtype, number in product(EXPERT_DTYPES, numbers)]
    write_part(out, "kernels", rows)


def _check(case: Case) -> Row:
    heads = HeadShape(
        case.num_kv_heads,
        case.head_dim,
        case.dtype,
        case.cached_dtype,
        has_sinks=case.has_sinks,
        looks_ahead=case.looks_ahead,
    )
    choice = choose_kernel(jax.devices()[0], heads)
    difference = largest_difference(choice.kernel(), case)
    longest, others = (case.num_chunks * (case.chunk - less) for less in (0, case.shorter))
    lengths = f"{longest} and {case.num_seqs - 1} times {others} tokens"
    return {
        "check": f"{case.dtype}, heads of {case.head_dim}, groups of {case.group}, {lengths}"
        + "".join(f", {trait}" for trait in _traits(case)),
        "passed": difference <= case.tolerance,  # a NaN fails
        "kernel": choice.name.value,
        "largest difference": f"{difference:.2e}",
    }


def _traits(case: Case) -> Iterator[str]:
    if case.cached_dtype is not None:
        yield f"cache of {case.cached_dtype}"
    if case.has_sinks:
        yield "sinks"
    if case.looks_ahead:
        yield "looking ahead"
    if case.scoring is not None and case.scoring.sliding_window is not None:
        yield f"window of {case.scoring.sliding_window}"
    if case.scoring is not None and case.scoring.soft_cap is not None:
        yield f"soft cap of {case.scoring.soft_cap:g}"


def _check_experts(weight_dtype: DTypeLike, num_rows: int) -> Row:
    """Compare the grouped products of experts with products of each expert."""
    mesh = DeviceMesh((jax.devices()[0],))
    random = np.random.RandomState(0)
    rows = jnp.asarray(random.randn(num_rows, IN_SIZE), jnp.bfloat16)
    values = jnp.asarray(random.randint(-8, 9, (NUM_EXPERTS, OUT_SIZE, IN_SIZE))).astype(weight_dtype)
    has_scales = values.dtype.itemsize == 1
    weight = QuantizedWeight(values, jnp.full(values.shape[:2], 0.1, jnp.float32)) if has_scales else values
    sizes = np.bincount(random.randint(0, NUM_EXPERTS - 2, num_rows), minlength=NUM_EXPERTS).astype(np.int32)
    products = choose_products(mesh, np.dtype(jnp.bfloat16))
    multiply = jax.jit(partial(grouped_linear, products=products, dtype=jnp.float32, fp8=choose_fp8_products(mesh)))
    actual = multiply(rows, weight, jnp.asarray(sizes))
    wide, expected, first = np.asarray(values, np.float32) * (0.1 if has_scales else 1), [], 0
    for expert, size in enumerate(sizes):
        expected.append(np.asarray(rows[first : first + size], np.float32) @ wide[expert].T)
        first += size
    expected = np.concatenate(expected)
    difference = float(np.max(np.abs(np.asarray(actual, np.float32) - expected)) / np.max(np.abs(expected)))
    return {
        "check": f"experts of {np.dtype(weight_dtype)}, {num_rows} rows",
        "passed": difference <= TOLERANCES["bfloat16"],
        "largest difference": f"{difference:.2e}",
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_tiny="--tiny" in sys.argv)
