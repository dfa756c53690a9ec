"""Tokens per second of the engine on a CPU beside llama.cpp, without HTTP, for each dtype of the weights.

    python -m benchmarks.cpu_llamacpp [--dtypes float32,bfloat16,auto,int8,int4,int4-k] [--waves 1,8,prefill-512]
        [--model 135m] [--rounds 5] [--short] [--cores 1]

Both run in turns, wave after wave, and each line gives the median of the rounds' ratios and its spread: llama.cpp's
seconds divided by Levserve's. Where other work shares the cores, the ratio of processor time says more: it counts what
each used, and not what it waited for. But threads of llama.cpp that wait for each other keep their cores busy, so it is
fair with `--cores 1` alone.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path

import psutil

from benchmarks.checkpoint import (
    LLAMA_1B,
    QWEN_3_5_800M,
    SMOLLM_135M,
    Geometry,
    make_checkpoint,
    word_ids,
    write_weights,
)
from benchmarks.contenders import Worker, service_environment
from benchmarks.machine import describe_machine, load_average
from benchmarks.peers.environment import LLAMACPP
from benchmarks.workload import Wave

ROOT = Path(__file__).parents[1]
GEOMETRIES = {"135m": SMOLLM_135M, "1b": LLAMA_1B, "qwen3.5-0.8b": QWEN_3_5_800M}
NUM_SEQUENCES = {"135m": 32, "1b": 8, "qwen3.5-0.8b": 8}
CONTEXT_LENS = {"135m": 4608, "1b": 2048, "qwen3.5-0.8b": 1536}
WAVES = ("1", "8", "32", "prefill-512", "prefill-4096")
TOKENS, SHORT_TOKENS = (128, 64), (32, 16)  # of a prompt and of its continuation
# Of each dtype of weights: that of the checkpoint, Levserve's settings, and the end of the name of llama.cpp's file.
DTYPES = {
    "float32": ("float32", {"DTYPE": "float32"}, ""),
    "bfloat16": ("bfloat16", {"DTYPE": "bfloat16"}, "-bf16"),
    "auto": ("bfloat16", {}, "-bf16"),
    "int8": ("float32", {"DTYPE": "float32", "QUANTIZATION": "int8"}, "-q8_0"),
    "int4": ("bfloat16", {"QUANTIZATION": "int4"}, "-q4_0"),
    "int4-k": ("bfloat16", {"QUANTIZATION": "int4"}, "-q4_k_m"),
}


def start(dtype: str, options: argparse.Namespace, folder: Path, stack: ExitStack) -> tuple[list[Worker], list[int]]:
    """Start the engine and llama.cpp, and return them with the words of prompts."""
    model = options.model
    stored, settings, suffix = DTYPES[dtype]
    sequences, context = NUM_SEQUENCES[model], CONTEXT_LENS[model]

    def write(folder: Path, geometry: Geometry) -> None:
        write_weights(folder, geometry, stored)
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": context}))

    checkpoint = make_checkpoint(folder / f"{model}-{stored}-{context}", GEOMETRIES[model], write)
    limits = {"MAX_NUM_SEQS": str(sequences), "MAX_MODEL_LEN": str(context)}
    on_cores = [] if options.cores is None else ["taskset", "--cpu-list", f"0-{options.cores - 1}"]
    engine = [*on_cores, sys.executable, "-m", "benchmarks.engine_worker"]
    gguf = folder / f"{checkpoint.name}{suffix}.gguf"
    python = str(LLAMACPP.python(folder / "llamacpp"))
    peer = [*on_cores, python, "-m", "benchmarks.peers.llamacpp", str(checkpoint), str(gguf)]
    workers = [
        Worker(engine, folder / "engine.log", service_environment(checkpoint, folder, settings | limits)),
        Worker([*peer, str(sequences), str(context)], folder / "llamacpp.log", os.environ),
    ]
    for worker in workers:
        stack.enter_context(closing(worker))
    return workers, word_ids(checkpoint)


def waves(options: argparse.Namespace) -> Iterator[Wave]:
    """Yield the waves that are asked for and that the limits of a model allow."""
    for name in options.waves.split(","):
        number = int(name.removeprefix("prefill-"))
        if name != str(number) and number < CONTEXT_LENS[options.model]:
            yield Wave(f"prefill of {number:,}", 1, number, 1)
        elif name == str(number) and number <= NUM_SEQUENCES[options.model]:
            yield Wave(f"{number} at once", number, *(SHORT_TOKENS if options.short else TOKENS))


def measure(worker: Worker, wave: Wave, words: list[int], seed: int) -> tuple[float, float]:
    """Run one wave and return its seconds, and those of processor time."""
    process = psutil.Process(worker.pid)
    prompts = wave.prompts(words, seed)
    began_s, before = time.perf_counter(), process.cpu_times()
    worker.run(prompts, wave.output_tokens)
    seconds, after = time.perf_counter() - began_s, process.cpu_times()
    return seconds, after.user + after.system - before.user - before.system


def lines(dtype: str, options: argparse.Namespace, seeds: Iterator[int]) -> Iterator[str]:
    """Yield a line for each wave."""
    with ExitStack() as stack:
        workers, words = start(dtype, options, ROOT / ".cache" / "bench", stack)
        for wave in waves(options):
            rounds, began = [], load_average()
            for turn in range(options.rounds + 1):
                order = workers if turn % 2 else workers[::-1]
                found = {worker.pid: measure(worker, wave, words, next(seeds)) for worker in order}
                if turn > 0:
                    rounds.append([found[worker.pid] for worker in workers])
            tokens = wave.num_requests * (wave.output_tokens if wave.output_tokens > 1 else wave.prompt_tokens)
            speeds = [statistics.median(tokens / own[index][0] for own in rounds) for index in range(2)]
            ratios = [sorted(own[1][part] / own[0][part] for own in rounds) for part in range(2)]
            cells = [f"{statistics.median(of):.2f} ({of[0]:.2f} to {of[-1]:.2f})" for of in ratios]
            load = f"{began:.1f} to {load_average():.1f}"
            yield f"| {dtype} | {wave.name} | {speeds[0]:,.1f} | {speeds[1]:,.1f} | {cells[0]} | {cells[1]} | {load} |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_llamacpp", description="Compare with llama.cpp.")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="of the weights, separated by commas")
    parser.add_argument("--waves", default=",".join(WAVES), help="numbers of requests, and prefills")
    parser.add_argument("--model", default="135m", choices=GEOMETRIES, help="the shape")
    parser.add_argument("--rounds", type=int, default=5, help="the number of rounds")
    parser.add_argument("--short", action="store_true", help="prompts of 32 tokens and continuations of 16")
    parser.add_argument("--cores", type=int, help="the number of cores that both use; all by default")
    options = parser.parse_args()
    machine = describe_machine()
    cores = options.cores or machine["cores"]
    print(f"{machine['processor']}, {cores} cores; {options.model}; {options.rounds} rounds.\n")
    print("| weights | wave | tokens/s | llama.cpp | ratio | of processor time | load average |")
    print("|---|---|---|---|---|---|---|")
    seeds = count()
    for dtype in options.dtypes.split(","):
        for line in lines(dtype, options, seeds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
