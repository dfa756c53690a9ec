"""The bytes per second from the page cache to the device, stage by stage: what limits the weights of a warm start."""

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np

from benchmarks.device_check.report import Row, write_part

ARRAYS, ARRAY_BYTES = 16, 2**28
TINY_ARRAY_BYTES = 2**20
THREADS = (1, 4, 8)


def main(out: Path, *, is_tiny: bool) -> None:
    """Measure reads of a file and copies to the device, into new memory and into memory that was used before."""
    num_bytes = TINY_ARRAY_BYTES if is_tiny else ARRAY_BYTES
    path = out / "transfers.bytes"
    path.write_bytes(os.urandom(num_bytes))  # reading it again finds it in the page cache
    used = [np.ones(num_bytes, np.uint8) for _ in range(ARRAYS)]

    def read(array: np.ndarray) -> np.ndarray:
        with path.open("rb", buffering=0) as file:
            view = memoryview(array)
            while view and (count := file.readinto(view)):
                view = view[count:]
        return array

    def place(array: np.ndarray) -> None:
        jax.device_put(array, jax.devices()[0]).block_until_ready()

    stages: dict[str, Callable[[int], object]] = {
        "read into used memory": lambda index: read(used[index]),
        "read into new memory": lambda index: read(np.empty(num_bytes, np.uint8)),
        "used memory to the device": lambda index: place(used[index]),
        "new memory to the device": lambda index: place(np.full(num_bytes, index, np.uint8)),
        "read into new memory and to the device": lambda index: place(read(np.empty(num_bytes, np.uint8))),
        "read into used memory and to the device": lambda index: place(read(used[index])),
    }
    place(used[0])
    rows: list[Row] = []
    for name, stage in stages.items():
        speeds = {f"GB/s, threads: {number}": _gb_per_s(stage, number, num_bytes) for number in THREADS}
        rows.append({"check": name, "passed": True, **speeds})
    path.unlink()
    write_part(out, "transfers", rows)


def _gb_per_s(stage: Callable[[int], object], num_threads: int, num_bytes: int) -> float:
    with ThreadPoolExecutor(num_threads) as pool:
        began_s = time.perf_counter()
        list(pool.map(stage, range(ARRAYS)))
        return round(ARRAYS * num_bytes / (time.perf_counter() - began_s) / 1e9, 2)


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_tiny="--tiny" in sys.argv)
