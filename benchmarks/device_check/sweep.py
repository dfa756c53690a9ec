"""The attention kernel of a GPU with other tiles, stages, warps and grids: the constants of `service/kernels/gpu.py`.

All choices of a load are compiled at the same time, and measured one after the other.
"""

import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
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
DTYPE = jnp.bfloat16
STAGES, WARPS, TILE_KIB = (2, 3, 4), (4, 8), (16, 32)
PROGRAMS = ((256, 256), (1024, 256), (1024, 512))  # enough, and at once
BEST_SHOWN = 6
ROUNDS, CALLS = 3, 16
LIMIT_S = 75


@dataclass(frozen=True)
class Load:
    """Sequences that decode, or a prompt in rows."""

    lengths: tuple[int, ...]  # cached tokens
    width: int = 1  # new tokens of each

    def __str__(self) -> str:
        return f"{len(self.lengths)} sequences of {min(self.lengths)} to {max(self.lengths)}, {self.width} new"


LOADS = (
    Load((1024,) * 64),
    Load((1024,)),
    Load(tuple(range(1024, 8193, 231))),  # 32 sequences
    Load((32_768, *(200,) * 32)),
    Load((2048,) * 32, 64),
)
TINY_LOADS = (Load((300, 32)),)


def main(out: Path, *, is_tiny: bool) -> None:
    """Measure each load with every choice that compiles, as far as the time goes."""
    if jax.devices()[0].platform != "gpu" and not is_tiny:
        write_part(out, "sweep", [{"check": "kernel of a GPU", "passed": True, "note": "no GPU"}])
        return
    end_s = time.perf_counter() + LIMIT_S
    today = (gpu.NUM_STAGES, gpu.NUM_WARPS, gpu.TILE_BYTES // 1024, gpu.ENOUGH_PROGRAMS, gpu.PROGRAMS_AT_ONCE)
    others = [] if is_tiny else [(*tile, *grid) for *tile, grid in itertools.product(STAGES, WARPS, TILE_KIB, PROGRAMS)]
    choices = list(dict.fromkeys([today, *others]))
    rows: list[Row] = []
    for load in TINY_LOADS if is_tiny else LOADS:
        times = _measure(load, choices, end_s, is_tiny=is_tiny)
        best = sorted(times, key=lambda choice: times[choice])
        for choice in dict.fromkeys([*best[:BEST_SHOWN], *([today] if today in times else [])]):
            rows.append(_row(load, choice, times[choice], is_today=choice == today))
        write_part(out, "sweep", rows)


def _row(load: Load, choice: tuple[int, ...], seconds: float, *, is_today: bool) -> Row:
    return {
        "check": str(load),
        "passed": True,
        **dict(zip(("stages", "warps", "KiB", "programs", "at once"), choice, strict=True)),
        "us": round(seconds * 1e6, 1),
        "GB/s": round(2 * 2 * sum(load.lengths) * NUM_KV_HEADS * HEAD_DIM / seconds / 1e9),
        "note": "as it is" if is_today else "",
    }


def _measure(
    load: Load, choices: list[tuple[int, ...]], end_s: float, *, is_tiny: bool
) -> dict[tuple[int, ...], float]:
    """Return the seconds of a call with each choice that compiles."""
    times = {}
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 2)) as pool:
        made: dict[tuple[int, ...], Future[Callable[[], float]]] = {}
        for choice in choices:
            gpu.NUM_STAGES, gpu.NUM_WARPS, gpu.TILE_BYTES = choice[0], choice[1], choice[2] * 1024
            gpu.ENOUGH_PROGRAMS, gpu.PROGRAMS_AT_ONCE = choice[3:]
            made[choice] = pool.submit(_prepare(load, is_tiny=is_tiny))
        for choice, run in made.items():
            try:
                one_call = run.result(timeout=max(1.0, end_s - time.perf_counter()))
                times[choice] = statistics.median([one_call() for _ in range(1 + ROUNDS)][1:])
            except (jax.errors.JaxRuntimeError, TimeoutError) as error:
                sys.stderr.write(f"{load}, {choice}: {type(error).__name__}: {str(error)[:200]}\n")
                run.cancel()
    return times


def _prepare(load: Load, *, is_tiny: bool) -> Callable[[], Callable[[], float]]:
    """Trace many calls in one program, so that no launch is waited for; return what compiles it."""
    kernel = gpu.TritonAttention(interpret=is_tiny)
    num_seqs, num_pages = len(load.lengths), [-(-length // PAGE_SIZE) for length in load.lengths]
    layout = CacheLayout(sum(num_pages), PAGE_SIZE)
    heads = (num_seqs, load.width, NUM_KV_HEADS)
    pages_of = jax.ShapeDtypeStruct((layout.num_pages, NUM_KV_HEADS, PAGE_SIZE, HEAD_DIM), DTYPE)
    query_of, new_of = (jax.ShapeDtypeStruct((*heads, *size), DTYPE) for size in ((GROUP, HEAD_DIM), (HEAD_DIM,)))
    pages, table = (
        np.random.RandomState(0).permutation(layout.num_pages),
        np.zeros((num_seqs, max(num_pages)), np.int32),
    )
    for row, own in zip(table, np.split(pages, np.cumsum(num_pages)[:-1]), strict=True):
        row[: len(own)] = own
    starts = np.array(load.lengths, np.int32) - load.width

    @jax.jit
    def attend_often(query: jax.Array, new_keys: jax.Array, new_values: jax.Array, cache: KVPages) -> jax.Array:
        paging = Paging(jnp.asarray(starts), jnp.full(num_seqs, load.width, jnp.int32), jnp.asarray(table))

        def attend(_: jax.Array, carry: tuple[jax.Array, KVPages]) -> tuple[jax.Array, KVPages]:
            query, cache = carry
            return kernel.attend(query, new_keys, new_values, cache, paging, scoring=Scoring(HEAD_DIM**-0.5))

        return jax.lax.fori_loop(0, CALLS, attend, (query, cache))[0]

    lowered = attend_often.lower(query_of, new_of, new_of, KVPages(pages_of, pages_of))  # pyright: ignore[reportArgumentType]

    def compile_it() -> Callable[[], float]:
        compiled = lowered.compile()

        def one_call() -> float:
            keys = jax.random.split(jax.random.key(0), 4)
            pages = jax.random.normal(keys[3], pages_of.shape, DTYPE)
            arrays = [
                jax.random.normal(key, of.shape, DTYPE)
                for key, of in zip(keys[:3], (query_of, new_of, new_of), strict=True)
            ]
            jax.block_until_ready([pages, *arrays])
            began_s = time.perf_counter()
            jax.block_until_ready(compiled(*arrays, KVPages(pages, pages)))
            return (time.perf_counter() - began_s) / CALLS

        return one_call

    return compile_it


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_tiny="--tiny" in sys.argv)
