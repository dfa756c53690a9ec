"""`make bench-constrained`: structured output alone, constrained streams against free ones in one run.

    python -m benchmarks.structured_output [--quick] [--runs N] [--output FOLDER]

It writes constrained.json (every raw run) and constrained.md (a table, which docs/figures/epyc.md shows).
"""

import argparse
import itertools
import signal
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.checkpoint import SMOLLM_135M, TINY, make_checkpoint, word_ids
from benchmarks.constrained import CONSTRAINED, MATES, measure_constrained, measure_new_schema
from benchmarks.contenders import HttpServer
from benchmarks.machine import describe_machine
from benchmarks.peers.start import OURS, SETTINGS, Site
from benchmarks.quiet import Quiet
from benchmarks.report import RESULTS, ROOT, SINGLE_TARGETS, write_files
from benchmarks.rounds import say, started, warm
from benchmarks.summary import constrained_figures, median


def main() -> None:
    """Measure and write the results."""
    options = parse_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the service is stopped too
    began = time.strftime("%Y-%m-%d")
    raw = measure(options)
    results = {"began": began, "machine": describe_machine(), "settings": SETTINGS, **raw}
    results |= constrained_figures(raw)
    write_files("constrained", results, markdown(results), options.output)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.structured_output", description="Measure grammars.")
    parser.add_argument("--quick", action="store_true", help="use a tiny model, to test the benchmark itself")
    parser.add_argument("--runs", type=int, default=6, help="number of runs")
    parser.add_argument("--patience", type=float, default=20, help="seconds to wait for a quiet moment, each time")
    parser.add_argument("--attempts", type=int, default=2, help="attempts at a measurement that others disturb")
    parser.add_argument("--output", type=Path, help="folder for the results")
    options = parser.parse_args()
    # The figures of a quick run are meaningless and must not overwrite the real ones.
    options.output = options.output or (ROOT / ".cache/bench/quick" if options.quick else RESULTS)
    return options


def measure(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Return every run of both measurements, which alternate."""
    folder = ROOT / ".cache" / "bench"
    geometry, name = (TINY, "tiny-float32") if options.quick else (SMOLLM_135M, "llama-135m-float32")
    checkpoint = make_checkpoint(folder / name, geometry)
    words, wave, mates = word_ids(checkpoint), CONSTRAINED[options.quick], MATES[options.quick]
    found: dict[str, list[dict[str, Any]]] = {"constrained": [], "new_schema": []}
    with started([OURS], Site(checkpoint, folder, SETTINGS), {}) as contenders:
        server = contenders[OURS]
        assert isinstance(server, HttpServer)
        warm(contenders, [wave, mates.wave], words)
        quiet = Quiet((server.pid,), options.patience, options.attempts)
        seeds = itertools.count()  # so that a second attempt hits neither a kept grammar nor the prefix cache
        tasks = {
            "constrained": lambda: measure_constrained(server, words, wave, seed=next(seeds)),
            "new_schema": lambda: measure_new_schema(server, words, mates, seed=next(seeds)),
        }
        for run in range(options.runs):
            for task_name, task in tasks.items():
                figures, disturbance = quiet.measure(task)
                found[task_name].append(figures | {"disturbance": disturbance})
                say(f"run {run + 1}/{options.runs} {task_name} {figures}, others used {disturbance:.2f} cores")
    return found


def markdown(results: dict[str, Any]) -> str:
    """Return the table as Markdown."""
    machine = results["machine"]
    disturbance = median(run["disturbance"] for name in ("constrained", "new_schema") for run in results[name])
    lines = [
        f"{machine['processor']}, {machine['cores']} cores, {results['began']}; medians of "
        f"{len(results['constrained'])} runs; other processes used {disturbance:.2f} cores meanwhile.",
        "",
        "| | target | measured |",
        "|---|---|---|",
    ]
    for name in ("ratio_constrained", "ratio_new_schema"):
        label, sign, target = SINGLE_TARGETS[name]
        lines.append(f"| {label} | {sign} {target} | {results[name]:.3f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
