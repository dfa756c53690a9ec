"""Time attention on a CPU over pages: in blocks by XLA, and in C++ to each sequence's end.

    python -m benchmarks.cpu_attention

Both run in turns in one process, layer after layer, and every line gives the ratio of their times and its spread.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from service.kernels.attention import AttentionKernel, Scoring
from service.kernels.blocks import BlockAttention
from service.kernels.cache_layout import CacheLayout
from service.kernels.native_pages import NativePagedAttention
from service.kernels.paging import Paging
from service.kernels.reference import KVPages

NUM_KV_HEADS, GROUP_SIZE, HEAD_DIM = 3, 3, 64  # of the 135M shape
NUM_LAYERS, PAGE_SIZE, NUM_ROUNDS = 8, 64, 15
# Sequences, new tokens of each, tokens cached before, and the context that the page table has room for.
STEPS = [
    (1, 1, 1000, 1024),
    (8, 1, 1000, 1024),
    (8, 1, 1100, 4096),
    (32, 1, 500, 1024),
    (1, 256, 0, 1024),
    (1, 256, 3800, 4096),
]


def step_of(kernel: AttentionKernel, layout: CacheLayout, dtype: str, paging: Paging, width: int) -> Callable[[], None]:
    """Return a function that runs attention of all layers once and waits."""
    num_seqs = len(paging.start)
    sizes = {"num_kv_heads": NUM_KV_HEADS, "head_dim": HEAD_DIM, "dtype": dtype}
    caches = [jax.jit(lambda: kernel.initial_cache(layout, **sizes))() for _ in range(NUM_LAYERS)]
    random = np.random.default_rng(0)
    shape = (num_seqs, width, NUM_KV_HEADS)
    query = jnp.asarray(random.standard_normal((*shape, GROUP_SIZE, HEAD_DIM), np.float32))
    keys, values = (jnp.asarray(random.standard_normal((*shape, HEAD_DIM), np.float32)) for _ in range(2))

    def attend(inputs: tuple[jax.Array, ...], caches: list[KVPages]) -> tuple[jax.Array, list[Any]]:
        made, (query, keys, values) = [], inputs
        for cache in caches:
            query, changed = kernel.attend(query, keys, values, cache, paging, scoring=Scoring(HEAD_DIM**-0.5))
            made.append(changed)
        return query, made

    step = jax.jit(attend, donate_argnums=1)

    def run() -> None:
        nonlocal caches
        attended, caches = step((query, keys, values), caches)
        jax.block_until_ready((attended, caches))

    return run


def main() -> None:
    """Print a table."""
    print("| cache | sequences | new tokens | cached | table for | XLA, ms | C++, ms | ratio | of processor time |")
    print("|---|---|---|---|---|---|---|---|---|")
    for dtype in ("float32", "bfloat16", "int8"):
        for num_seqs, width, start, context in STEPS:
            table_width = context // PAGE_SIZE
            table = np.arange(num_seqs * table_width, dtype=np.int32).reshape(num_seqs, table_width)
            numbers = np.full(num_seqs, start, np.int32), np.full(num_seqs, width, np.int32), table
            paging = Paging(*(jnp.asarray(each, jnp.int32) for each in numbers))
            layout = CacheLayout(table.size, PAGE_SIZE)
            kernels = BlockAttention(), NativePagedAttention()
            steps = [step_of(kernel, layout, dtype, paging, width) for kernel in kernels]
            times, processor_times = ([[], []] for _ in range(2))
            for turn in range(NUM_ROUNDS + 2):
                for index, step in enumerate(steps):
                    began_s, began_processor_s = time.perf_counter(), time.process_time()
                    step()
                    if turn >= 2:
                        times[index].append((time.perf_counter() - began_s) * 1e3)
                        processor_times[index].append((time.process_time() - began_processor_s) * 1e3)
            ratios = sorted(after / before for before, after in zip(*times, strict=True))
            quarter = NUM_ROUNDS // 4
            spread = f"{statistics.median(ratios):.2f} ({ratios[quarter]:.2f} to {ratios[-1 - quarter]:.2f})"
            medians = [statistics.median(each) for each in (*times, *processor_times)]
            row = f"| {dtype} | {num_seqs} | {width} | {start:,} | {context:,} | {medians[0]:.2f} | {medians[1]:.2f} "
            print(f"{row}| {spread} | {medians[3] / medians[2]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
