"""Tokens per second of contenders that run beside each other, measured in turn."""

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psutil

from benchmarks.checkpoint import word_ids
from benchmarks.contenders import Contender, Worker, levserve
from benchmarks.peers.environment import LLAMACPP, PeerAbsent
from benchmarks.quantization.ways import LLAMA_FLOAT32, LLAMA_Q8, WAYS, way_folder, way_settings
from benchmarks.quiet import Quiet
from benchmarks.rounds import say, warm
from benchmarks.workload import Wave, throughput_waves


def measure_speed(
    names: Sequence[str], checkpoint: Path, options: argparse.Namespace, found: dict[str, Any], save: Callable[[], None]
) -> None:
    """Measure the rounds that are missing of some contenders, and the memory of their processes after them."""
    waves = throughput_waves(is_quick=options.quick)
    found |= {"waves": [wave.as_json() for wave in waves], "absent": {}}
    records = found.setdefault("runs", [])
    done = {(record["run"], record["wave"], record["contender"]) for record in records}
    with _started(names, checkpoint, found["absent"], options) as contenders:
        words, warmed = word_ids(checkpoint), set[tuple[str, str]]()
        quiet = Quiet(tuple(contender.pid for contender in contenders.values()), options.patience, max_attempts=2)
        # Prompts that no attempt has had before, of an interrupted run neither, so that a prefix cache does not help.
        seeds = count(1000 * len(records))
        for run in range(options.runs):
            for wave in waves:
                missing = {n: each for n, each in contenders.items() if (run, wave.name, n) not in done}
                # Just before a wave's first round, so that a call of a few minutes gets to measure something.
                warm({n: each for n, each in missing.items() if (n, wave.name) not in warmed}, [wave], words)
                warmed |= {(n, wave.name) for n in missing}
                for name, contender in missing.items():
                    facts = {"run": run, "wave": wave.name, "contender": name}
                    records.append(facts | _measure(contender, wave, words, seeds, quiet))
                    save()
                    speed = f"{records[-1]['tokens_per_s']:.1f} tokens/s"
                    say(f"run {run + 1}/{options.runs} {wave.name} {name}: {speed}")
        found["resident_bytes"] = {
            name: psutil.Process(contender.pid).memory_info().rss for name, contender in contenders.items()
        }


@contextmanager
def _started(
    names: Sequence[str], checkpoint: Path, absent: dict[str, str], options: argparse.Namespace
) -> Iterator[dict[str, Contender]]:
    """Start contenders; llama.cpp is left out, with the reason, where it cannot be installed."""
    folder = checkpoint.parent
    with ExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for way in filter(WAYS.__contains__, names):
            say(f"starting {way}")
            server = levserve(checkpoint, way_folder(folder, way), way_settings(way, is_quick=options.quick))
            contenders[way] = stack.enter_context(closing(server))
        peers = {LLAMA_FLOAT32: "", LLAMA_Q8: "-q8_0"}
        for peer, suffix in peers.items():
            if peer not in names or options.no_llamacpp:
                continue
            say(f"starting {peer}")
            try:
                contenders[peer] = stack.enter_context(closing(_llamacpp(checkpoint, suffix)))
            except (PeerAbsent, RuntimeError, OSError) as error:
                absent[peer] = str(error)
                say(f"absent: {peer}: {error}")
        yield contenders


def _llamacpp(checkpoint: Path, suffix: str) -> Worker:
    folder = checkpoint.parent
    python, gguf = LLAMACPP.python(folder / "llamacpp"), folder / f"{checkpoint.name}{suffix}.gguf"
    command = [str(python), "-m", "benchmarks.peers.llamacpp", str(checkpoint), str(gguf)]
    return Worker(command, folder / f"llamacpp{suffix}.log", dict(os.environ))


def _measure(
    contender: Contender, wave: Wave, words: list[int], seeds: Iterator[int], quiet: Quiet
) -> Mapping[str, float]:
    """Run one wave; prompt tokens count in waves of one output token."""
    outcome, disturbance = quiet.measure(lambda: contender.run(wave.prompts(words, next(seeds)), wave.output_tokens))
    tokens = outcome.num_tokens if wave.output_tokens > 1 else wave.num_requests * wave.prompt_tokens
    return {"tokens_per_s": tokens / outcome.seconds, "disturbance": disturbance}
