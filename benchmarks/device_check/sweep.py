"""The attention kernel of a GPU with other tiles, stages and warps: the constants of `service/kernels/gpu.py`."""

import itertools
import statistics
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.device_check.report import Row, write_part
from service.kernels import gpu
from service.kernels.attention import Scoring
from service.kernels.cache_layout import CacheLayout
from service.kernels.paging import Paging
from service.kernels.reference import KVPages

NUM_KV_HEADS, GROUP, HEAD_DIM, PAGE_SIZE = 8, 4, 128, 16  # of Llama 3.1 8B
# Sequences, cached positions, and new tokens of each.
LOADS = ((64, 1024, 1), (1, 1024, 1), (8, 8192, 1), (32, 2048, 64))
TINY_LOADS = ((2, 64, 1),)
STAGES, WARPS, TILE_BYTES = (2, 3, 4), (4, 8), (8192, 16384, 32768)
ROUNDS, CALLS = 3, 16
LIMIT_S = 100


def main(out: Path, *, is_tiny: bool) -> None:
    """Measure each load with every choice that compiles, as far as the time goes."""
    if jax.devices()[0].platform != "gpu" and not is_tiny:
        write_part(out, "sweep", [{"check": "kernel of a GPU", "passed": True, "note": "no GPU"}])
        return
    end_s = time.perf_counter() + LIMIT_S
    choices = [(2, 4, 16384)] if is_tiny else list(itertools.product(STAGES, WARPS, TILE_BYTES))
    rows: list[Row] = []
    for load in TINY_LOADS if is_tiny else LOADS:
        times: dict[str, float] = {}
        for stages, warps, tile_bytes in choices:
            if time.perf_counter() > end_s:
                break
            gpu.NUM_STAGES, gpu.NUM_WARPS, gpu.TILE_BYTES = stages, warps, tile_bytes
            try:
                times[f"{stages} stages, {warps} warps, {tile_bytes // 1024} KiB"] = _measure_s(*load, is_tiny=is_tiny)
            except jax.errors.JaxRuntimeError as error:
                sys.stderr.write(f"{load}, {stages}, {warps}, {tile_bytes}: {str(error)[:300]}\n")
        num_seqs, context, width = load
        num_bytes = 2 * 2 * num_seqs * context * NUM_KV_HEADS * HEAD_DIM
        for name, seconds in sorted(times.items(), key=lambda pair: pair[1]):
            check = f"{num_seqs} sequences of {context}, {width} new; {name}"
            gb_per_s = round(num_bytes / seconds / 1e9)
            rows.append({"check": check, "passed": True, "us": round(seconds * 1e6, 1), "GB/s": gb_per_s})
    write_part(out, "sweep", rows)


def _measure_s(num_seqs: int, context: int, width: int, *, is_tiny: bool) -> float:
    """Return the seconds of one of many calls in one program, so that no launch is waited for."""
    kernel, dtype = gpu.TritonAttention(interpret=is_tiny), jnp.bfloat16
    num_pages = context // PAGE_SIZE
    layout = CacheLayout(num_seqs * num_pages, PAGE_SIZE)
    keys = jax.random.split(jax.random.key(0), 4)
    cache = kernel.initial_cache(layout, num_kv_heads=NUM_KV_HEADS, head_dim=HEAD_DIM, dtype=np.dtype(dtype))
    cache = jax.tree.map(lambda array: jax.random.normal(keys[3], array.shape, dtype), cache)
    table = np.random.RandomState(0).permutation(layout.num_pages).reshape(num_seqs, num_pages)
    start, num_tokens = (jnp.full(num_seqs, number, jnp.int32) for number in (context - width, width))
    paging = Paging(start, num_tokens, jnp.asarray(table, jnp.int32))
    heads = (num_seqs, width, NUM_KV_HEADS)
    query = jax.random.normal(keys[0], (*heads, GROUP, HEAD_DIM), dtype)
    new_keys, new_values = (jax.random.normal(key, (*heads, HEAD_DIM), dtype) for key in keys[1:3])

    @jax.jit
    def attend_often(query: jax.Array, cache: KVPages) -> tuple[jax.Array, KVPages]:
        def attend(_: jax.Array, carry: tuple[jax.Array, KVPages]) -> tuple[jax.Array, KVPages]:
            query, cache = carry
            return kernel.attend(query, new_keys, new_values, cache, paging, scoring=Scoring(HEAD_DIM**-0.5))

        return jax.lax.fori_loop(0, CALLS, attend, (query, cache))

    def seconds() -> float:
        began_s = time.perf_counter()
        jax.block_until_ready(attend_often(query, cache))
        return time.perf_counter() - began_s

    return statistics.median([seconds() for _ in range(1 + ROUNDS)][1:]) / CALLS


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_tiny="--tiny" in sys.argv)
