"""CPU milliseconds per text: of the service over HTTP, of its encoder alone, and of bare compiled steps.

    python -m benchmarks.embeddings.host_time [--cells t16c1,t16c64] [--waves N]

`loop` is the event loop's thread: HTTP, JSON, tokenizer, answers. It needs no idle machine.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import psutil

from benchmarks.contenders import HttpServer, Worker, levserve, service_environment
from benchmarks.embeddings.__main__ import SETTINGS
from benchmarks.embeddings.checkpoint import checkpoint
from benchmarks.embeddings.served import send_texts
from benchmarks.embeddings.workload import Cell, cells, sentences
from benchmarks.report import markdown_table

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cells", help="measurements, separated by commas; all by default")
    parser.add_argument("--waves", type=int, default=5, help="measurements of each, of which the median is shown")
    options = parser.parse_args()
    names = options.cells.split(",") if options.cells else None
    chosen = [cell for cell in cells(is_quick=False) if (cell.name in names if names else cell.num_tokens)]
    path, folder = checkpoint("minilm", ROOT / ".cache" / "bench"), ROOT / ".cache" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.embeddings.worker"]
    with (
        closing(levserve(path, folder, SETTINGS)) as server,
        closing(Worker(command, folder / "encoder.log", service_environment(path, folder, SETTINGS))) as worker,
    ):
        rows = [_row(server, worker, cell, options.waves) for cell in chosen]
    head = ["CPU ms per text", "served", "its loop", "encoder", "bare", "served − bare", "p50 ms"]
    print(markdown_table(head, rows))


def _row(server: HttpServer, worker: Worker, cell: Cell, num_waves: int) -> list[str]:
    waves = [_wave(server, worker, cell, seed) for seed in range(num_waves + 1)][1:]
    medians = {name: statistics.median(wave[name] for wave in waves) for name in waves[0]}
    figures = [medians[name] for name in ("process", "loop", "encode", "bare")]
    return [cell.name, *(f"{figure:.2f}" for figure in (*figures, figures[0] - figures[3], medians["p50"]))]


def _wave(server: HttpServer, worker: Worker, cell: Cell, seed: int) -> dict[str, float]:
    texts, ids = sentences(cell, seed), cell.texts(seed)
    before, sent = _cpu_s(server.pid), send_texts(server, texts, cell.num_clients)
    after = _cpu_s(server.pid)
    asked = {name: partial(worker.ask, name, ids, cell.num_clients) for name in ("encode", "bare")}
    others = {name: 1000 * _spent_s(worker.pid, ask) / len(ids) for name, ask in asked.items()}
    loop, process = (1000 * (late - early) / len(texts) for early, late in zip(before, after, strict=True))
    return {"loop": loop, "process": process, "p50": 1000 * sent["p50_s"], **others}


def _spent_s(pid: int, work: Callable[[], object]) -> float:
    before = _cpu_s(pid)[1]
    work()
    return _cpu_s(pid)[1] - before


def _cpu_s(pid: int) -> tuple[float, float]:
    """Return the CPU seconds of a process's main thread, and of all its threads."""
    process = psutil.Process(pid)
    [main_thread] = [thread for thread in process.threads() if thread.id == pid]
    times = process.cpu_times()
    return main_thread.user_time + main_thread.system_time, times.user + times.system


if __name__ == "__main__":
    main()
