"""`make bench-embeddings`: Levserve, its compiled steps and its peers, alternately in one run; and its warm starts.

    python -m benchmarks.embeddings [--quick] [--models NAME,NAME] [--runs N] [--resume] [--output FOLDER]

Every contender gets token ids, so that no tokenizer is timed, and the same number of threads; the service over HTTP
gets texts of as many tokens. With each measurement stands the CPU time of the contender's own process, to which the
client of the service does not belong. It writes embeddings.json (every run) and embeddings.md (tables).
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from benchmarks import timed_starts
from benchmarks.contenders import HttpServer, Worker, levserve, service_environment
from benchmarks.embeddings.checkpoint import checkpoint
from benchmarks.embeddings.report import markdown
from benchmarks.embeddings.served import send_texts
from benchmarks.embeddings.workload import FIRST_ID, Cell, cells, sentences
from benchmarks.machine import begun, load_average
from benchmarks.peers.environment import ONNXRUNTIME, SENTENCE_TRANSFORMERS, PeerAbsent
from benchmarks.quiet import MAX_ATTEMPTS, Quiet
from benchmarks.report import write_files
from benchmarks.rounds import say

ROOT = Path(__file__).parents[2]
MODELS = ("minilm", "bge-base")
SETTINGS = {"DTYPE": "float32", "EMBEDDING_CACHE_BYTES": "0", "MAX_MODEL_LEN": "512"}
# Each measurement's contender and task.
TASKS = {
    "encoder": ("levserve", "encode"),
    "bare": ("levserve", "bare"),
    "torch": ("torch", "encode"),
    "windows": ("torch", "windows"),
    "onnxruntime": ("onnxruntime", "encode"),
}
SERVED = "served"
# Measurements that one task alone is for: the older service's way, of many lengths together.
ONLY_MIXED = "windows"
SAME_VECTOR_ATOL = 1e-4
TEXT = [FIRST_ID + i for i in range(16)]  # of a start's first request


class Contenders(NamedTuple):
    """What is measured of one model."""

    workers: dict[str, Worker]
    server: HttpServer  # Levserve over HTTP


def main() -> None:
    """Measure and write the results."""
    options = _parse_options()
    folder = ROOT / ".cache" / "bench"
    results: dict[str, Any] = {
        **begun("benchmarks.embeddings"),
        "absent": {},
        "contenders": {},
        "runs": [],
        "starts": [],
    }
    names = options.cells.split(",") if options.cells else None
    results["cells"] = [cell.name for cell in cells(is_quick=options.quick) if names is None or cell.name in names]
    unfinished = folder / "unfinished-embeddings.json"
    if options.resume and unfinished.exists():
        results["runs"] = json.loads(unfinished.read_text())["runs"]
        say(f"goes on after {len(results['runs'])} measurements")
    for model in options.models:
        chosen = [cell for cell in cells(model, is_quick=options.quick) if cell.name in results["cells"]]
        path = checkpoint(model, folder / model)
        with _started(path, folder, results) as contenders:
            pids = (contenders.server.pid, *(worker.pid for worker in contenders.workers.values()))
            quiet = Quiet(pids, options.patience, options.attempts)
            done = {(record["cell"], record["run"]) for record in results["runs"] if record["model"] == model}
            for records in _measure(contenders, model, chosen, quiet, num_runs=options.runs, done=done):
                results["runs"] += records
                unfinished.write_text(json.dumps(results))
        results["starts"] += _starts(model, path, folder, options)
    results["load_average_after"] = load_average()
    write_files("embeddings", results, markdown(results), options.output)
    unfinished.unlink(missing_ok=True)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embeddings", description="Measure encoders.")
    parser.add_argument("--quick", action="store_true", help="a few short texts, to test the benchmark itself")
    parser.add_argument("--models", default=",".join(MODELS), help="models, separated by commas")
    parser.add_argument("--runs", type=int, default=3, help="number of runs")
    parser.add_argument("--patience", type=float, default=20, help="seconds to wait for a quiet moment, each time")
    parser.add_argument("--attempts", type=int, default=MAX_ATTEMPTS, help="attempts to measure undisturbed")
    parser.add_argument("--resume", action="store_true", help="go on with a run that was interrupted")
    parser.add_argument("--cells", help="measurements, separated by commas, such as t16c8; all by default")
    parser.add_argument("--output", type=Path, help="folder for the results")
    options = parser.parse_args()
    options.models = options.models.split(",")
    # The figures of a quick run are meaningless and must not overwrite the real ones.
    options.output = options.output or ROOT / (".cache/bench/quick" if options.quick else "benchmarks/results")
    return options


@contextmanager
def _started(path: Path, folder: Path, results: dict[str, Any]) -> Iterator[Contenders]:
    """Start each contender in an environment of its own, and stop them at the end."""
    peers = {
        "torch": (SENTENCE_TRANSFORMERS, "sentence_transformers_torch", ()),
        "onnxruntime": (ONNXRUNTIME, "onnxruntime_exported", (str(folder / f"{path.name}.onnx"),)),
    }
    with ExitStack() as stack:
        say(f"starting the contenders for {path.name}")
        command, environment = [sys.executable, "-m", "benchmarks.embeddings.worker"], SETTINGS
        ours = Worker(command, folder / "encoder.log", service_environment(path, folder, environment))
        workers = {"levserve": stack.enter_context(closing(ours))}
        server = stack.enter_context(closing(levserve(path, folder, SETTINGS)))
        for name, (packages, module, arguments) in peers.items():
            try:
                python = packages.python(folder / name)
                peer = Worker(
                    [str(python), "-m", f"benchmarks.peers.{module}", str(path), *arguments], folder / "p.log"
                )
                workers[name] = stack.enter_context(closing(peer))
            except (PeerAbsent, OSError, RuntimeError) as error:
                results["absent"][name] = str(error)
                say(f"absent: {name}: {error}")
        results["contenders"] |= {name: worker.facts for name, worker in workers.items()}
        yield Contenders(workers, server)


def _measure(
    contenders: Contenders,
    model: str,
    chosen: list[Cell],
    quiet: Quiet,
    *,
    num_runs: int,
    done: Set[tuple[str, int]],
) -> Iterator[list[dict[str, Any]]]:
    """Measure every cell with every contender in turn, once to warm up and check, then `num_runs` times.

    Args:
        contenders: of the model.
        model: its name.
        chosen: the cells.
        quiet: the stopwatch.
        num_runs: the number of runs.
        done: the cells and runs that an earlier call has measured.

    Yields:
        The records of a cell's run.
    """
    workers, server = contenders
    tasks = {name: (workers[worker], ask) for name, (worker, ask) in TASKS.items() if worker in workers}
    for run in range(-1, num_runs):
        for cell in chosen:
            if (cell.name, run) in done:
                continue
            texts, vectors, records = cell.texts(seed=1 + run), {}, []
            asked = {
                name: partial(_timed, worker.pid, partial(worker.ask, ask, texts, cell.num_clients))
                for name, (worker, ask) in tasks.items()
                if name != ONLY_MIXED or cell.num_tokens is None
            }
            send = partial(send_texts, server, sentences(cell, 1 + run), cell.num_clients)
            asked[SERVED] = partial(_timed, server.pid, send)
            for name, task in asked.items():
                result, disturbance = quiet.measure(task)
                if name != SERVED:
                    vectors[name] = result.pop("vector")
                if run < 0:
                    continue
                speed = len(texts) / result["seconds"]
                say(f"run {run + 1}/{num_runs} {model} {cell.name} {name}: {speed:.1f} texts/s")
                facts = {"model": model, "cell": cell.name, "task": name, "run": run, "disturbance": disturbance}
                records.append(facts | result | {"texts_per_s": speed, "cpu_s_per_text": result["cpu_s"] / len(texts)})
            for name, vector in vectors.items():
                np.testing.assert_allclose(vector, vectors["bare"], atol=SAME_VECTOR_ATOL, err_msg=name)
            if records:
                yield records


def _timed(pid: int, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of a measurement, and the CPU seconds of the process that did the work."""
    began_s = _cpu_s(pid)
    return work() | {"cpu_s": _cpu_s(pid) - began_s}


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def _starts(model: str, path: Path, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time starts with a bundle, each after its floor: jax imported, the device found, the bytes read."""
    cache = folder / "cache"  # where the measurements before have saved the bundle

    def warm() -> dict[str, Any]:
        return timed_starts.levserve(str(path), cache, TEXT, SETTINGS, ask=timed_starts.first_vector)

    quiet, found = Quiet((), options.patience, options.attempts), []
    for run in range(options.runs):
        for name, task in {"floor": partial(timed_starts.floor, path), "warm": warm}.items():
            record, _ = quiet.measure(task)
            found.append({"model": model, "start": name, "run": run, "seconds": record["first_token_s"]})
            say(f"run {run + 1}/{options.runs} {model} start {name}: {record['first_token_s']:.2f} s")
    return found


if __name__ == "__main__":
    main()
