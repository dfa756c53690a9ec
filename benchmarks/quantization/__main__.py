"""`make bench-quantization`: int8 next to float32 and llama.cpp, alternately in one run with the same weights.

    python -m benchmarks.quantization [--quick] [--runs N] [--parts speed,starts] [--minutes N] [--fresh]

It writes quantization.json (every run) and quantization.md (a line for each bound of the project, met or missed). A run
that was interrupted, as by --minutes, goes on where it stopped, with the parts and rounds that are missing.
"""

import argparse
import functools
import json
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.checkpoint import SMOLLM_135M, TINY, make_checkpoint
from benchmarks.machine import describe_machine, load_average
from benchmarks.quantization.memory import measure_memory
from benchmarks.quantization.quality import measure_quality, run_checks
from benchmarks.quantization.report import PAGE, markdown
from benchmarks.quantization.speed import measure_speed
from benchmarks.quantization.starts import measure_starts
from benchmarks.quantization.ways import MAIN, OTHERS
from benchmarks.report import write_files
from benchmarks.rounds import say

ROOT = Path(__file__).parents[2]

type Part = Callable[[Path, argparse.Namespace, dict[str, Any], Callable[[], None]], None]
"""Fills its results, which may hold some of an interrupted run, and calls the function whenever they have grown."""

PARTS: Mapping[str, Part] = {
    "memory": measure_memory,
    "speed": functools.partial(measure_speed, MAIN),
    "others": functools.partial(measure_speed, OTHERS),
    "starts": measure_starts,
    "quality": measure_quality,
    "checks": run_checks,
}


def main() -> None:
    """Measure what is missing, and write the results."""
    options = _parse_options()
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, lambda *_: sys.exit(1))  # so that the contenders are stopped too
    signal.setitimer(signal.ITIMER_REAL, 60 * options.minutes)
    folder = ROOT / ".cache" / "bench"
    geometry, name = (TINY, "tiny-float32") if options.quick else (SMOLLM_135M, "llama-135m-float32")
    checkpoint = make_checkpoint(folder / name, geometry)
    unfinished = folder / f"unfinished-quantization-{name}.json"
    results = _begun(unfinished, options)

    def save() -> None:
        unfinished.write_text(json.dumps(results))

    for part in options.parts:
        found = results["parts"].setdefault(part, {})
        if not found.get("is_complete"):
            say(part)
            PARTS[part](checkpoint, options, found, save)
            found["is_complete"] = True
            save()
    results["load_average_after"] = load_average()
    write_files("quantization", results, markdown(results), options.output, PAGE)
    if all(results["parts"].get(part, {}).get("is_complete") for part in PARTS):
        unfinished.unlink()


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantization", description="Measure 8 bits.")
    parser.add_argument("--quick", action="store_true", help="use a tiny model, to test the benchmark itself")
    parser.add_argument("--runs", type=int, default=5, help="number of rounds")
    parser.add_argument("--patience", type=float, default=4, help="seconds to wait for a quiet moment, each time")
    parser.add_argument("--parts", default=",".join(PARTS), help="parts, separated by commas; all by default")
    parser.add_argument("--minutes", type=float, default=0, help="stop after so many, to go on with the next call")
    parser.add_argument("--fresh", action="store_true", help="forget an interrupted run")
    parser.add_argument("--no-llamacpp", action="store_true", help="measure Levserve alone")
    parser.add_argument("--output", type=Path, help="folder for the results")
    options = parser.parse_args()
    options.parts = options.parts.split(",")
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown parts {', '.join(sorted(unknown))}; known are {', '.join(PARTS)}")
    # The figures of a quick run are meaningless and must not overwrite the real ones.
    options.output = options.output or ROOT / (".cache/bench/quick" if options.quick else "benchmarks/results")
    return options


def _begun(unfinished: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the results of an interrupted run, or empty ones."""
    if unfinished.exists() and not options.fresh:
        say(f"going on with {unfinished}")
        return json.loads(unfinished.read_text())
    return {
        "command": f"python -m benchmarks.quantization {shlex.join(sys.argv[1:])}".strip(),
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": describe_machine(),
        "load_average_before": load_average(),
        "parts": {},
    }


if __name__ == "__main__":
    main()
