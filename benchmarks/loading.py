"""Loading speed from a bucket: Levserve, a bare parallel GET, transfer_manager, gcsfs and Run:ai's streamer.

python -m benchmarks.loading [--work-dir FOLDER] [--repeats 5] [--json FILE] [--case 135M:float32:float32]

The bucket is fake-gcs-server over loopback with objects in memory; `--link-mbytes-per-s` puts a proxy in front that
limits the total rate, as a network does. The contenders alternate, each in its own process.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks.checkpoint import LLAMA_1B, SMOLLM_135M, write_weights
from benchmarks.gcs_emulator import emulator, upload
from benchmarks.slow_link import slow_link

GEOMETRIES = {"135M": SMOLLM_135M, "1B": LLAMA_1B}
REPOSITORY = Path(__file__).parents[1]
RIVALS = ("transfer_manager", "gcsfs", "runai")
CONTENDERS = ("levserve", "bare", "bare_urllib3", *RIVALS)
TIMEOUT_S = 300
WORKERS = 8  # Levserve's default on two cores; it suits the others too


@dataclass(frozen=True)
class Case:
    """A checkpoint and the dtype that its weights are cast to."""

    geometry: str
    stored: str
    served: str

    @classmethod
    def parse(cls, text: str) -> "Case":
        """Read `135M:bfloat16:float32`."""
        return cls(*text.split(":"))

    def __str__(self) -> str:
        return f"{self.geometry} {self.stored}" + (f" as {self.served}" if self.served != self.stored else "")


CASES = ("135M:float32:float32", "135M:bfloat16:bfloat16", "135M:bfloat16:float32", "1B:bfloat16:bfloat16")


def measure(
    case: Case, url: str, work: Path, options: argparse.Namespace, contenders: Sequence[str]
) -> dict[str, list[dict[str, float]]]:
    """Run the contenders alternately, several times."""
    folder = work / f"{case.geometry}-{case.stored}"
    size_bytes = (folder / "model.safetensors").stat().st_size
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for _ in range(options.repeats):
        for name in contenders:
            python = options.runai_python if name == "runai" and options.runai_python else sys.executable
            command = [python, "-m", "benchmarks.loading_contender", name, url, folder.name, "--dtype", case.served]
            command += ["--size-bytes", str(size_bytes), "--workers", str(options.workers), "--folder", str(work)]
            environment = os.environ | {"JAX_PLATFORMS": "cpu"}
            done = subprocess.run(
                command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
            )
            if done.returncode:
                print(f"{case}: {name} is absent: {done.stderr.strip().splitlines()[-1][:200]}", file=sys.stderr)
                runs[name] = []
                contenders = [other for other in contenders if other != name]
            else:
                run = json.loads(done.stdout.splitlines()[-1])
                runs[name].append(run | {"bytes_per_s": size_bytes / run["wall_s"]})
    return {name: results for name, results in runs.items() if results}


def table(case: Case, runs: dict[str, list[dict[str, float]]]) -> Iterator[str]:
    """Yield one line of Markdown per contender."""
    for name, results in runs.items():
        rate, cpu_s = _median(results, "bytes_per_s"), _median(results, "cpu_s")
        ratio = _ratio(runs, name)
        peak = f"{_median(results, 'peak_rss_above_weights_bytes') / 2**20:.0f}" if name == "levserve" else ""
        yield f"| {case} | {name} | {rate / 1e6:.0f} | {cpu_s:.2f} | {ratio:.2f} | {peak} |"


def flat(cases: dict[str, dict[str, list[dict[str, float]]]]) -> dict[str, float | str]:
    """Return the figures that are compared between commits: medians over the cases without a cast."""
    same = [runs for text, runs in cases.items() if Case.parse(text).stored == Case.parse(text).served]
    keys = {
        "ratio_loader_vs_bare": "bare_urllib3",
        "ratio_loader_vs_plain_sockets": "bare",
        "ratio_loader_vs_gcsfs": "gcsfs",
        "ratio_loader_vs_transfer_manager": "transfer_manager",
        "ratio_loader_vs_runai": "runai",
    }
    values: dict[str, float | str] = {}
    for key, name in keys.items():
        ratios = [_ratio(runs, name) for runs in same if name in runs]
        values[key] = round(statistics.median(ratios), 3) if ratios else "absent"
    peaks = [_median(runs["levserve"], "peak_rss_above_weights_bytes") for runs in cases.values()]
    values["peak_rss_above_weights_bytes"] = int(max(peaks))
    return values


def _median(results: Sequence[dict[str, float]], key: str) -> float:
    return statistics.median(result[key] for result in results)


def _ratio(runs: dict[str, list[dict[str, float]]], name: str) -> float:
    # Pairs that ran one after the other, so that other load on the machine affects both.
    pairs = zip(runs["levserve"], runs[name], strict=True)
    return statistics.median(ours["bytes_per_s"] / theirs["bytes_per_s"] for ours, theirs in pairs)


@contextmanager
def _folder(path: Path | None) -> Iterator[Path]:
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
        yield path
    else:
        with tempfile.TemporaryDirectory(prefix="loading-") as name:
            yield Path(name)


def measure_all(options: argparse.Namespace) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Measure all cases and print a table; return the runs by case and contender."""
    contenders = options.contender or CONTENDERS
    measured = {}
    print("| checkpoint | loader | MB/s | CPU s | ours / this | peak above weights, MiB |\n|---|---|---|---|---|---|")
    with _folder(options.work_dir) as work:
        for text in options.case or CASES:
            case = Case.parse(text)
            with emulator(work / "emulator.log") as direct_url:
                folder = work / f"{case.geometry}-{case.stored}"
                if not (folder / "model.safetensors").exists():
                    write_weights(folder, GEOMETRIES[case.geometry], case.stored)
                upload(direct_url, folder, folder.name)
                limit = options.link_mbytes_per_s
                with slow_link(direct_url, int(limit * 1e6)) if limit else nullcontext(direct_url) as url:
                    measured[text] = measure(case, url, work, options, contenders)
            print("\n".join(table(case, measured[text])), flush=True)
    return measured


def main() -> None:
    """Measure all cases; print a table and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work-dir", type=Path, help="folder that keeps the random checkpoints for the next run")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=WORKERS, help="connections of every contender")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--case", action="append", default=[])
    parser.add_argument("--contender", action="append", default=[], choices=CONTENDERS)
    parser.add_argument("--link-mbytes-per-s", type=float, help="total rate of the simulated network, in MB/s")
    parser.add_argument("--runai-python", help="a Python interpreter with runai-model-streamer")
    options = parser.parse_args()
    values = flat(measure_all(options))
    print(json.dumps(values, indent=1))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    main()
