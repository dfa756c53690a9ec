"""`make bench`: Levserve, its engine, its compiled steps and its peers, alternately in one run with the same weights.

    python -m benchmarks.serving [--quick] [--runs N] [--peers NAME,NAME] [--output FOLDER]

It writes serving.json (all figures and every raw run), serving.md (tables) and serving.png.
"""

import argparse
import itertools
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.checkpoint import SMOLLM_135M, TINY, make_checkpoint, word_ids
from benchmarks.constrained import CONSTRAINED, MATES, measure_constrained, measure_new_schema
from benchmarks.contenders import HttpServer
from benchmarks.latency import measure_late, measure_mixed, measure_shared_prefix
from benchmarks.machine import describe_machine, load_average
from benchmarks.peers.start import ENGINE, OURS, SERVING_PEERS, SETTINGS, Site
from benchmarks.quiet import Quiet
from benchmarks.report import write_report
from benchmarks.rounds import check_agreement, run_rounds, say, started, warm
from benchmarks.summary import summarize
from benchmarks.workload import Wave, throughput_waves

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Measure and write the results."""
    options = parse_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the contenders are stopped too
    folder = ROOT / ".cache" / "bench"
    geometry, name = (TINY, "tiny-float32") if options.quick else (SMOLLM_135M, "llama-135m-float32")
    checkpoint = make_checkpoint(folder / name, geometry)
    results: dict[str, Any] = {
        "command": f"python -m benchmarks.serving {shlex.join(sys.argv[1:])}".strip(),
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": describe_machine(),
        "load_average_before": load_average(),
        "model_name": name,
        "model": geometry.hub_config(),
        "settings": SETTINGS,
        "absent": {},
    }
    measure(results, Site(checkpoint, folder, SETTINGS), options)
    results |= summarize(results)
    results["took_minutes"] = round((time.time() - time.mktime(time.strptime(results["began"][:19], FORMAT))) / 60, 1)
    write_report(results, options.output)


FORMAT = "%Y-%m-%dT%H:%M:%S"


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description="Measure Levserve and its peers.")
    parser.add_argument(
        "--quick", action="store_true", help="use a tiny model and short requests, to test the benchmark itself"
    )
    parser.add_argument("--runs", type=int, default=5, help="number of runs")
    parser.add_argument("--peers", default=",".join(SERVING_PEERS), help="peers, separated by commas; empty for none")
    parser.add_argument("--patience", type=float, default=20, help="seconds to wait for a quiet moment, each time")
    parser.add_argument("--output", type=Path, help="folder for the results")
    options = parser.parse_args()
    options.peers = [peer for peer in options.peers.split(",") if peer]
    if unknown := set(options.peers) - set(SERVING_PEERS):
        parser.error(f"unknown peers {', '.join(sorted(unknown))}; known are {', '.join(SERVING_PEERS)}")
    # The figures of a quick run are meaningless and must not overwrite the real ones.
    options.output = options.output or ROOT / (".cache/bench/quick" if options.quick else "benchmarks/results")
    return options


def measure(results: dict[str, Any], site: Site, options: argparse.Namespace) -> None:
    """Run all measurements and add the raw figures to `results`."""
    waves = throughput_waves(is_quick=options.quick)
    words = word_ids(site.checkpoint)
    results["waves"] = [wave.as_json() for wave in waves]
    with started([OURS, ENGINE, *options.peers], site, results["absent"]) as contenders:
        results["contenders"] = {name: contender.facts for name, contender in contenders.items()}
        warm(contenders, waves, words)
        prompt = waves[0].prompts(words, seed=20_000)[0]
        tokenizer = Tokenizer.from_file(str(site.checkpoint / "tokenizer.json"))
        results["agreement"] = check_agreement(contenders, prompt, tokenizer)
        quiet = Quiet(tuple(contender.pid for contender in contenders.values()), options.patience)
        results["runs"] = []
        for record in run_rounds(contenders, waves, words, options.runs, quiet):
            results["runs"].append(record)
            # A full run takes half an hour: keep what is measured, in case it is interrupted.
            (site.folder / "unfinished.json").write_text(json.dumps(results))
        ours = contenders[OURS]
        assert isinstance(ours, HttpServer)
        results |= measure_latency(ours, words, options, quiet)
    results["host"] = [measure_host() for _ in range(3)]
    results["load_average_after"] = load_average()


def measure_latency(server: HttpServer, words: list[int], options: argparse.Namespace, quiet: Quiet) -> dict[str, Any]:
    """Measure a late request, a shared prefix, a mixed load and structured output."""
    wave = Wave("late", 17, 16, 900) if options.quick else Wave("late", 17, 128, 96)
    constrained, mates = CONSTRAINED[options.quick], MATES[options.quick]
    prefix_tokens = 200 if options.quick else 1000
    seeds = itertools.count()  # so that a second attempt does not hit the prefix cache
    tasks: dict[str, Callable[[], dict[str, Any]]] = {
        "late": lambda: measure_late(server, words, wave, seed=next(seeds)),
        "shared_prefix": lambda: measure_shared_prefix(server, words, prefix_tokens, 8, seed=next(seeds)),
        "mixed": lambda: measure_mixed(server, words, seed=next(seeds), is_quick=options.quick),
        "constrained": lambda: measure_constrained(server, words, constrained, seed=next(seeds)),
        "new_schema": lambda: measure_new_schema(server, words, mates, seed=next(seeds)),
    }
    found: dict[str, list[Any]] = {name: [] for name in tasks}
    for run in range(options.runs):
        for name, task in tasks.items():
            figures, disturbance = quiet.measure(task)
            found[name].append(figures | {"disturbance": disturbance})
            say(f"run {run + 1}/{options.runs} {name}, other processes used {disturbance:.2f} cores")
    return found


def measure_host() -> dict[str, float]:
    """Measure the engine's host time per step in a new process."""
    command = [sys.executable, "-m", "benchmarks.host_time", "--sequences", "64"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
