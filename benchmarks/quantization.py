"""`make bench-quantization`: int8 next to float32 and llama.cpp, alternately in one run with the same weights.

    python -m benchmarks.quantization [--quick] [--runs N] [--patience S] [--no-llamacpp]

It prints a table of ratios beside the bounds of the project; figures of a quick run are meaningless.
"""

import argparse
import signal
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import jax
import psutil

from benchmarks.checkpoint import SMOLLM_135M, TINY, make_checkpoint, word_ids
from benchmarks.contenders import Contender, Worker, levserve
from benchmarks.machine import describe_machine
from benchmarks.peers.environment import LLAMACPP, PeerAbsent
from benchmarks.quiet import Quiet
from benchmarks.rounds import say, warm
from benchmarks.workload import Wave, throughput_waves
from service.checkpoint.discover import locate
from service.kernels.limits import vector_bytes
from service.settings import Settings
from service.start.kinds.engine_spec import EngineSpec, choose_engine_spec
from service.storage.local import LocalSource
from service.storage.location import LocalLocation, Location

ROOT = Path(__file__).parents[1]
SETTINGS = {"MAX_NUM_SEQS": "32", "MAX_MODEL_LEN": "1024", "DTYPE": "float32"}
WAYS = {
    "float32": {},
    "int8": {"QUANTIZATION": "int8"},
    "int8, int8 KV": {"QUANTIZATION": "int8", "KV_DTYPE": "int8"},
}
LLAMA_FLOAT32, LLAMA_Q8 = "llama.cpp float32", "llama.cpp q8_0"
# Least ratio of tokens per second, by wave.
BOUNDS = {
    ("int8", "float32"): {"c1": 1.5, "c8": 1.8, "c32": 1.6, "prefill": 1.3},
    ("int8", LLAMA_Q8): {"c1": 1.0, "c8": 1.2, "c32": 1.2},
    ("int8", LLAMA_FLOAT32): {"c1": 1.5, "c8": 1.8, "c32": 1.7},
    ("float32", LLAMA_FLOAT32): {"c1": 0.95, "c8": 0.95, "c32": 1.05},
    ("int8, int8 KV", "float32"): {},
}
MOST_MEMORY = 0.35  # of weights and KV, int8 over float32

type Speeds = Mapping[tuple[str, str], list[float]]
"""Tokens per second of each run, by contender and wave."""


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantization")
    parser.add_argument("--quick", action="store_true", help="use a tiny model, to test the benchmark itself")
    parser.add_argument("--runs", type=int, default=5, help="number of rounds")
    parser.add_argument("--patience", type=float, default=4, help="seconds to wait for a quiet moment, each time")
    parser.add_argument("--no-llamacpp", action="store_true", help="measure Levserve alone")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the contenders are stopped too
    folder = ROOT / ".cache" / "bench"
    geometry, name = (TINY, "tiny-float32") if options.quick else (SMOLLM_135M, "llama-135m-float32")
    checkpoint = make_checkpoint(folder / name, geometry)
    waves = throughput_waves(is_quick=options.quick)
    with started(checkpoint, folder, with_llamacpp=not options.no_llamacpp) as contenders:
        words = word_ids(checkpoint)
        warm(contenders, waves, words)
        quiet = Quiet(tuple(contender.pid for contender in contenders.values()), options.patience, max_attempts=2)
        speeds = measured(contenders, waves, words, options.runs, quiet)
        resident = {name: psutil.Process(contender.pid).memory_info().rss for name, contender in contenders.items()}
    print_tables(speeds, waves, resident, {way: planned_bytes(checkpoint, way) for way in WAYS})


@contextmanager
def started(checkpoint: Path, folder: Path, *, with_llamacpp: bool) -> Iterator[dict[str, Contender]]:
    """Start all contenders; llama.cpp is left out, with the reason, where it cannot be installed."""
    with ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for way, settings in WAYS.items():
            say(f"starting {way}")
            own = folder / way.replace(", ", "-").replace(" ", "-")
            own.mkdir(parents=True, exist_ok=True)
            contenders[way] = stack.enter_context(closing(levserve(checkpoint, own, SETTINGS | settings)))
        for peer, suffix in ((LLAMA_FLOAT32, ""), (LLAMA_Q8, "-q8_0")) if with_llamacpp else ():
            say(f"starting {peer}")
            gguf = folder / f"{checkpoint.name}{suffix}.gguf"
            try:
                python = LLAMACPP.python(folder / "llamacpp")
                command = [str(python), "-m", "benchmarks.peers.llamacpp", str(checkpoint), str(gguf)]
                worker = Worker(command, folder / f"llamacpp{suffix}.log")
            except (PeerAbsent, RuntimeError, OSError) as error:
                say(f"absent: {peer}: {error}")
            else:
                contenders[peer] = stack.enter_context(closing(worker))
        yield contenders


def measured(
    contenders: Mapping[str, Contender], waves: list[Wave], words: list[int], num_runs: int, quiet: Quiet
) -> Speeds:
    """Run every wave with every contender in alternation; prompt tokens count in waves of one output token."""
    speeds: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in range(num_runs):
        for wave in waves:
            prompts = wave.prompts(words, seed=run)
            for name, contender in contenders.items():
                outcome, disturbance = quiet.measure(lambda c=contender, w=wave, p=prompts: c.run(p, w.output_tokens))
                tokens = outcome.num_tokens if wave.output_tokens > 1 else wave.num_requests * wave.prompt_tokens
                speeds[name, wave.name].append(tokens / outcome.seconds)
                speed = f"{speeds[name, wave.name][-1]:.1f} tokens/s, others used {disturbance:.2f} cores"
                say(f"run {run + 1}/{num_runs} {wave.name} {name}: {speed}")
    return speeds


def planned_bytes(checkpoint: Path, way: str) -> int:
    """Return the bytes of the weights and of the KV cache that Levserve allocates, pages included."""
    settings = {name.lower(): value for name, value in (SETTINGS | WAYS[way]).items()}
    spec = choose_engine_spec(
        Settings.model_validate(settings), locate(str(checkpoint), _open_local), jax.devices()[:1]
    )
    assert isinstance(spec, EngineSpec)
    of_token = spec.config.kv_bytes_per_token(vector_bytes(spec.kernel.cached_head_dim, spec.kv_dtype))
    copies = 2 if spec.shapes.has_slot_cache else 1
    return spec.weights_bytes + spec.shapes.num_pages * spec.shapes.page_size * of_token * copies


def _open_local(location: Location) -> LocalSource:
    assert isinstance(location, LocalLocation), "the checkpoint is on this machine"
    return LocalSource(location)


def print_tables(speeds: Speeds, waves: list[Wave], resident: Mapping[str, int], planned: Mapping[str, int]) -> None:
    """Print medians, ratios beside their bounds, and memory."""
    medians = {key: statistics.median(values) for key, values in speeds.items()}
    names = list(dict.fromkeys(name for name, _ in speeds))
    print(f"\n{describe_machine()['processor']}\n\n| tokens/s | {' | '.join(wave.name for wave in waves)} |")
    print("|---" * (len(waves) + 1) + "|")
    for name in names:
        print(f"| {name} | {' | '.join(f'{medians[name, wave.name]:.1f}' for wave in waves)} |")
    print(f"\n| ratio (bound) | {' | '.join(wave.name for wave in waves)} |\n{'|---' * (len(waves) + 1)}|")
    for (ours, theirs), bounds in BOUNDS.items():
        if theirs in names:
            cells = []
            for wave in waves:
                bound = f" (≥ {bounds[wave.name]})" if wave.name in bounds else ""
                cells.append(f"{medians[ours, wave.name] / medians[theirs, wave.name]:.2f}{bound}")
            print(f"| {ours} ÷ {theirs} | {' | '.join(cells)} |")
    print("\n| memory | weights and KV, planned | ÷ float32 | resident, all of the process |\n|---|---|---|---|")
    for way, num_bytes in planned.items():
        bound = f" (≤ {MOST_MEMORY})" if way == "int8, int8 KV" else ""
        ratio = f"{num_bytes / planned['float32']:.2f}{bound}"
        print(f"| {way} | {num_bytes / 1e6:,.0f} MB | {ratio} | {resident[way] / 1e6:,.0f} MB |")


if __name__ == "__main__":
    main()
