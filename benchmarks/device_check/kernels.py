"""The device's attention kernel against the reference in float32: dtypes, head sizes, groups, long contexts."""

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import jax
import numpy as np

from benchmarks.device_check.report import Row, write_part
from service.kernels.attention import Scoring
from service.kernels.choice import HeadShape, choose_kernel
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
)
TINY_CASES = tuple(
    Case(np.dtype(dtype), num_kv_heads=2, group=3, head_dim=head_dim)
    for dtype, head_dim in product(("float32", "bfloat16"), (64, 80))
)


def main(out: Path, *, is_tiny: bool) -> None:
    """Check every case."""
    write_part(out, "kernels", [_check(case) for case in (TINY_CASES if is_tiny else CASES)])


def _check(case: Case) -> Row:
    heads = HeadShape(case.num_kv_heads, case.head_dim, case.dtype, looks_ahead=case.looks_ahead)
    choice = choose_kernel(jax.devices()[0], heads)
    difference = largest_difference(choice.kernel(), case)
    longest, others = (case.num_chunks * (case.chunk - less) for less in (0, case.shorter))
    lengths = f"{longest} and {case.num_seqs - 1} times {others} tokens"
    return {
        "check": f"{case.dtype}, heads of {case.head_dim}, groups of {case.group}, {lengths}"
        + (", looking ahead" if case.looks_ahead else ""),
        "passed": difference <= case.tolerance,  # a NaN fails
        "kernel": choice.name.value,
        "largest difference": f"{difference:.2e}",
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_tiny="--tiny" in sys.argv)
