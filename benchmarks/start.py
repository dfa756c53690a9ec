"""`make bench-start`: process start to first token of Levserve, its floor and its peers, and loading speed.

    python -m benchmarks.start [--quick] [--runs 5] [--peers llamacpp,transformers,levanter] [--output FOLDER]

All contenders alternate in one run, with the same checkpoint. It writes start.json (figures and every raw run),
start.md (tables) and start.png; a full run also writes docs/start_timeline.png, the timeline of a warm start.
"""

import argparse
import compileall
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import loading, timed_starts
from benchmarks.checkpoint import SMOLLM_135M, TINY, make_checkpoint, word_ids
from benchmarks.contenders import ROOT
from benchmarks.gcs_emulator import emulator, upload
from benchmarks.loading_contender import BUCKET
from benchmarks.machine import describe_machine, load_average
from benchmarks.peers.environment import LLAMACPP, RUNAI, TRANSFORMERS, Environment, PeerAbsent
from benchmarks.peers.start import PEERS, Site
from benchmarks.quiet import Quiet
from benchmarks.rounds import say
from benchmarks.start_report import write_report
from benchmarks.start_summary import summarize

SETTINGS = {"DTYPE": "float32"}
PROMPT_TOKENS = 16
# Starts of minutes are measured once, those of half a minute twice.
MAX_RUNS = {"cold_disk": 1, "cold_bucket": 1, "levanter": 2}
LOADING_CASES = ("135M:float32:float32", "1B:bfloat16:bfloat16")
MAKE_BYTECODE = "import compileall, sysconfig as s; compileall.compile_dir(s.get_path('purelib'), quiet=2, workers=0)"
TIMELINE = ROOT / "docs" / "start_timeline.png"


def main() -> None:
    """Measure and write the results."""
    options = parse_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the contenders are stopped too
    folder = ROOT / ".cache" / "bench"
    geometry, name = (TINY, "tiny-float32") if options.quick else (SMOLLM_135M, "llama-135m-float32")
    site = Site(make_checkpoint(folder / name, geometry), folder, SETTINGS)
    began_s = time.monotonic()
    results: dict[str, Any] = {
        "command": f"python -m benchmarks.start {shlex.join(sys.argv[1:])}".strip(),
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": describe_machine(),
        "load_average_before": load_average(),
        "model_name": name,
        "model_bytes": (site.checkpoint / "model.safetensors").stat().st_size,
        "settings": SETTINGS,
        "absent": {},
    }
    compile_all(results["absent"], options.peers, folder)
    results["runs"] = measure_starts(site, options, results["absent"])
    results["loading"] = measure_loading(folder, options, results["absent"])
    results |= summarize(results)
    results["load_average_after"] = load_average()
    results["took_minutes"] = round((time.monotonic() - began_s) / 60, 1)
    write_report(results, options.output)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description="Measure starts and loading.")
    parser.add_argument(
        "--quick", action="store_true", help="use a tiny model and one run, to test the benchmark itself"
    )
    parser.add_argument("--runs", type=int, default=5, help="number of runs, except of slow starts")
    parser.add_argument("--peers", default=",".join(PEERS), help="peers, separated by commas; empty for none")
    parser.add_argument("--patience", type=float, default=20, help="seconds to wait for a quiet moment, each time")
    parser.add_argument("--output", type=Path, help="folder for the results")
    options = parser.parse_args()
    options.runs = 1 if options.quick else options.runs
    options.peers = [peer for peer in options.peers.split(",") if peer]
    if unknown := set(options.peers) - set(PEERS):
        parser.error(f"unknown peers {', '.join(sorted(unknown))}; known are {', '.join(PEERS)}")
    # The figures of a quick run are meaningless and must not overwrite the real ones.
    options.output = options.output or ROOT / (".cache/bench/quick" if options.quick else "benchmarks/results")
    return options


def compile_all(absent: dict[str, str], peers: list[str], folder: Path) -> None:
    """Compile the bytecode of all contenders, as an installation or an image does."""
    say("compiling bytecode")
    for path in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), str(ROOT / "service")):
        compileall.compile_dir(path, quiet=2, workers=0)
    environments: dict[str, Environment] = {"llamacpp": LLAMACPP, "transformers": TRANSFORMERS}
    for name, environment in environments.items():
        if name in peers:
            try:
                python = environment.python(folder / name)
            except PeerAbsent as error:
                absent[name] = str(error)
                continue
            subprocess.run([str(python), "-c", MAKE_BYTECODE], check=False)


def measure_starts(site: Site, options: argparse.Namespace, absent: dict[str, str]) -> list[dict[str, Any]]:
    """Start the contenders alternately; return each start as `{"contender", "run", "first_token_s", …}`."""
    caches = site.folder / "start"
    shutil.rmtree(caches, ignore_errors=True)
    caches.mkdir(parents=True)
    prompt = word_ids(site.checkpoint)[:PROMPT_TOKENS]
    quiet = Quiet((), options.patience)
    records = []
    with emulator(caches / "emulator.log") as url:
        upload(url, site.checkpoint, site.checkpoint.name)
        tasks = _tasks(site, caches, url, prompt, options.peers)
        for run in range(options.runs):
            for name, task in tasks.items():
                if name in absent or run >= MAX_RUNS.get(name, options.runs):
                    continue
                try:
                    record, disturbance = quiet.measure(task)
                except PeerAbsent as error:
                    absent[name] = str(error)
                    say(f"absent: {name}: {error}")
                    continue
                say(f"run {run + 1} {name}: {record['first_token_s']:.2f} s, others used {disturbance:.2f} cores")
                records.append({"contender": name, "run": run, "disturbance": disturbance, **record})
    if not options.quick:
        TIMELINE.unlink(missing_ok=True)
        from_here = os.path.relpath(site.checkpoint, ROOT)  # the figure shows it
        timed_starts.levserve(from_here, caches / "disk", prompt, SETTINGS, picture=TIMELINE)
    return records


def _tasks(
    site: Site, caches: Path, url: str, prompt: list[int], peers: list[str]
) -> dict[str, Callable[[], dict[str, Any]]]:
    disk, bucket = str(site.checkpoint), f"gs://{BUCKET}/{site.checkpoint.name}"
    # Weights from a bucket come over the network every time; only the bundle is kept.
    streamed = SETTINGS | {"STORAGE_EMULATOR_HOST": url, "MODEL_STREAM": "true"}

    def cold(uri: str, place: str, settings: dict[str, str]) -> dict[str, Any]:
        shutil.rmtree(caches / place, ignore_errors=True)
        return timed_starts.levserve(uri, caches / place, prompt, settings)

    def warm(uri: str, place: str, settings: dict[str, str]) -> dict[str, Any]:
        return timed_starts.levserve(uri, caches / place, prompt, settings)

    tasks: dict[str, Callable[[], dict[str, Any]]] = {
        "cold_disk": lambda: cold(disk, "disk", SETTINGS),
        "cold_bucket": lambda: cold(bucket, "bucket", streamed),
        "floor": lambda: timed_starts.floor(site.checkpoint),
        "warm_disk": lambda: warm(disk, "disk", SETTINGS),
        "warm_bucket": lambda: warm(bucket, "bucket", streamed),
    }
    return tasks | {name: lambda name=name: timed_starts.peer(name, site, prompt) for name in peers}


def measure_loading(folder: Path, options: argparse.Namespace, absent: dict[str, str]) -> dict[str, Any]:
    """Load from the bucket with every client alternately; return the raw runs by case."""
    arguments = argparse.Namespace(
        work_dir=folder / "loading",
        repeats=1 if options.quick else 5,
        workers=loading.WORKERS,
        case=list(LOADING_CASES[:1] if options.quick else LOADING_CASES),
        contender=[],
        link_mbytes_per_s=None,
        runai_python=None,
    )
    try:
        arguments.runai_python = str(RUNAI.python(folder / "runai"))
    except PeerAbsent as error:
        absent["runai"] = str(error)
    return loading.measure_all(arguments)


if __name__ == "__main__":
    main()
