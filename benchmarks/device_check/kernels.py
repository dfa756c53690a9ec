"""The device's attention kernel against the reference in float32: dtypes, head sizes, groups, long contexts."""

import functools
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.device_check.report import Row, write_part
from service.kernels.attention import AttentionKernel, Scoring
from service.kernels.cache_layout import CacheLayout
from service.kernels.choice import HeadShape, choose_kernel
from service.kernels.paging import Paging
from service.kernels.reference import PagedReference

NUM_KV_HEADS, PAGE_SIZE = 2, 16
# Two roundings of values of about one, in units of the last place; products of float32 may be of TF32.
TOLERANCES = {"float32": 2e-2, "bfloat16": 2 * 4 * 2**-9, "float16": 2 * 4 * 2**-11}


@dataclass(frozen=True)
class Case:
    """What is attended to."""

    dtype: str
    head_dim: int
    group: int
    context: int  # tokens, which are written in chunks
    chunk: int = 512


CASES = (
    *(Case(dtype, 128, 4, 1024) for dtype in TOLERANCES),
    *(Case("bfloat16", head_dim, 4, 1024) for head_dim in (64, 80, 96, 256)),
    *(Case("bfloat16", 128, group, 1024) for group in (1, 3, 7, 8)),
    Case("bfloat16", 128, 4, 32_768),
)
TINY_CASES = tuple(Case(dtype, head_dim, 3, 64, 32) for dtype, head_dim in product(("float32", "bfloat16"), (64, 80)))


def main(out: Path, *, is_tiny: bool) -> None:
    """Check every case."""
    write_part(out, "kernels", [_check(case) for case in (TINY_CASES if is_tiny else CASES)])


def _check(case: Case) -> Row:
    dtype = np.dtype(case.dtype)
    choice = choose_kernel(jax.devices()[0], HeadShape(NUM_KV_HEADS, case.head_dim, dtype))
    num_pages = -(-(case.context + 1) // PAGE_SIZE)
    layout = CacheLayout(num_pages, PAGE_SIZE)
    of_device = _attend(case, choice.kernel(), layout, dtype)
    of_reference = _attend(case, PagedReference(), layout, np.dtype(np.float32))
    difference = float(np.max(np.abs(of_device - of_reference)))
    return {
        "check": f"{case.dtype}, heads of {case.head_dim}, groups of {case.group}, {case.context} tokens",
        "passed": difference <= TOLERANCES[case.dtype],  # a NaN fails
        "kernel": choice.name.value,
        "largest difference": f"{difference:.2e}",
    }


def _attend(case: Case, kernel: AttentionKernel, layout: CacheLayout, dtype: np.dtype) -> np.ndarray:
    """Return the outputs of the last chunk of a prompt and of one token after it; inputs are rounded alike."""
    scoring = Scoring(case.head_dim**-0.5)
    attend = jax.jit(functools.partial(kernel.attend, scoring=scoring))
    cache = kernel.initial_cache(layout, num_kv_heads=NUM_KV_HEADS, head_dim=case.head_dim, dtype=dtype)
    table = np.random.RandomState(1).permutation(layout.num_pages)[None].astype(np.int32)
    chunks = [(start, case.chunk) for start in range(0, case.context, case.chunk)]
    outputs = []
    with jax.default_matmul_precision("highest"):
        for start, width in [*chunks, (case.context, 1)]:
            random = np.random.RandomState(start)
            heads = (1, width, NUM_KV_HEADS)
            sizes = ((*heads, case.group, case.head_dim), (*heads, case.head_dim), (*heads, case.head_dim))
            arrays = [jnp.asarray(random.randn(*size), case.dtype).astype(dtype) for size in sizes]
            start_array, width_array = (jnp.array([number], jnp.int32) for number in (start, width))
            paging = Paging(start_array, width_array, jnp.asarray(table))
            attended, cache = attend(*arrays, cache, paging)
            outputs = [*outputs[-1:], np.asarray(attended, np.float32).reshape(-1)]
    return np.concatenate(outputs)


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_tiny="--tiny" in sys.argv)
