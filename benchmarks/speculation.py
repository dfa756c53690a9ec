"""Several tokens a step beside one: tokens a second with and without drafts, taken in turns, in one process.

    python -m benchmarks.speculation [--quantization int8] [--runs 5] [--quick] [--only oracle,copy | --only draft]
    python -m benchmarks.speculation --only copy --peer

The model has the shapes of SmolLM2-135M and random weights, so that what it writes is known to nobody at temperature 1.
A text that it should write is imposed by a rule that allows one token at a time, with drafts and without.

With `--peer` llama.cpp writes the same text as the copy, in turns, with and without the drafts of llama-cpp-python's
prompt lookup. With `--only draft` all layers but the first quarter add nothing, and a draft model has only those: it is
always right.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import UInt
from safetensors.numpy import load_file, save_file

from benchmarks.checkpoint import SMOLLM_135M, TINY, Geometry, make_checkpoint, write_weights
from benchmarks.contenders import Worker
from benchmarks.machine import begun
from benchmarks.peers.environment import LLAMACPP
from service.engine.drafter import Drafter
from service.engine.engine import Engine
from service.engine.request import Request, Sampling
from service.engine.runner import Runner
from service.engine.schedule.proposers import Proposer
from service.engine.schedule.sequence import Sequence as Continued
from service.engine.schedule.speculation import Speculation
from service.engine.token_mask import pack_token_mask
from service.observability.metrics import Metrics
from service.observability.model_metrics import ModelMetrics
from service.settings.sources import load_settings
from service.start.context import StartContext
from service.start.load import ModelStart
from service.start.progress import StartProgress

ROOT = Path(__file__).parents[1]
LINE_TOKENS, NUM_LINES = 10, 40
GREEDY = Sampling(temperature=0.0)


class Imposed:
    """A rule that allows the tokens of one text alone."""

    is_free = False

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids, self._place = token_ids, 0

    def copy(self) -> Self:
        """Return the rule at the same token."""
        return copy(self)

    def forced_tokens(self) -> list[int]:
        """Return none, though all are."""
        return []

    def fill_mask(self, words: UInt[np.ndarray, " word"]) -> None:
        """Allow the next token of the text."""
        mask = pack_token_mask([self._token_ids[self._place]])
        words.fill(0)
        words[: len(mask)] = mask

    def accept(self, token_id: int) -> None:
        """Go on."""
        assert token_id == self._token_ids[self._place]
        self._place += 1


class Knowing(Proposer):
    """Proposes what a text goes on with, or always something else."""

    first_acceptance = 1.0

    def __init__(self, token_ids: Sequence[int], *, is_right: bool) -> None:
        self._token_ids, self._is_right = token_ids, is_right

    def propose(self, sequence: Continued, limit: int) -> list[int]:
        """Return the next tokens of the text."""
        begin = len(sequence.output_ids)
        return [token_id if self._is_right else token_id + 1 for token_id in self._token_ids[begin : begin + limit]]

    def forget(self, sequence: Continued) -> None:
        """Nothing was kept."""


class Bench:
    """One model, and engines on it with and without drafts."""

    def __init__(self, runner: Runner, vocab_size: int, runs: int, drafter: Drafter | None = None) -> None:
        self.drafter = drafter
        self._runner, self.runs, self.vocab_size = runner, runs, vocab_size
        self.random = random.Random(1)
        self.shapes = runner.shapes

    def compare(
        self,
        requests: Callable[[], list[Request]],
        speculation: Callable[[], Speculation],
        *,
        has_equal_text: bool = True,
    ) -> dict[str, Any]:
        """Return the median tokens a second of both, and what became of the drafts."""
        without, with_drafts, ratios, differing, policy, num_tokens = [], [], [], [], None, 0
        processor_ratios = []
        for _ in range(self.runs):
            begin_s = time.process_time()
            plain_s, plain = self._run(requests(), None)
            policy, between_s = speculation(), time.process_time()
            drafted_s, drafted = self._run(requests(), policy)
            processor_ratios.append((between_s - begin_s) / (time.process_time() - between_s))
            differing.append(sum(a != b for a, b in zip(plain, drafted, strict=True)))
            num_tokens = sum(map(len, plain))
            without.append(num_tokens / plain_s)
            with_drafts.append(num_tokens / drafted_s)
            ratios.append(plain_s / drafted_s)
        assert policy is not None
        return {
            "off_tokens_per_s": round(statistics.median(without), 1),
            "on_tokens_per_s": round(statistics.median(with_drafts), 1),
            "ratio": round(statistics.median(ratios), 3),
            "ratios": [round(ratio, 3) for ratio in ratios],
            "processor_ratio": round(statistics.median(processor_ratios), 3),
            "drafts": policy.num_drafts,
            "draft_tokens": policy.num_draft_tokens,
            "accepted_at": policy.num_accepted_at,
            "tokens": num_tokens,
            "differing_texts": differing,
        }

    def text_of(self, request: Request) -> list[int]:
        """Return how a request goes on."""
        return self._run([request], None)[1][0]

    def _run(self, requests: list[Request], speculation: Speculation | None) -> tuple[float, list[tuple[int, ...]]]:
        """Return how long all the tokens but the first of each took, and the tokens."""
        engine = Engine(self._runner, self._runner.shapes, ModelMetrics(), max_requests=99, speculation=speculation)
        engine.start()
        try:
            return asyncio.run(_read_all(engine, requests))
        finally:
            engine.stop()
            engine.check_integrity()


async def _read_all(engine: Engine, requests: list[Request]) -> tuple[float, list[tuple[int, ...]]]:
    begun_s: list[float] = []

    async def read(request: Request) -> tuple[int, ...]:
        token_ids: list[int] = []
        async for event in engine.submit(request):
            if not token_ids:
                begun_s.append(time.perf_counter())
            token_ids += event.token_ids
        return tuple(token_ids)

    texts = await asyncio.gather(*map(read, requests))
    return time.perf_counter() - max(begun_s), texts


def edited_file(draw: random.Random, vocab_size: int) -> tuple[tuple[int, ...], list[int]]:
    """Return a prompt with a file of 400 tokens, and the file with one line changed."""
    words = [draw.randrange(3, vocab_size) for _ in range(120)]
    lines = [[draw.choice(words) for _ in range(LINE_TOKENS)] for _ in range(NUM_LINES)]
    prompt = [draw.randrange(3, vocab_size) for _ in range(12)]
    for line in lines:
        prompt += line
    lines[NUM_LINES // 2] = [draw.randrange(3, vocab_size) for _ in range(LINE_TOKENS)]
    return tuple(prompt), [token_id for line in lines for token_id in line]


def compare_lookup(worker: Worker, asked: Sequence[int], answer: Sequence[int], runs: int) -> dict[str, Any]:
    """Return how much faster llama.cpp is with its drafts."""
    turns = [[worker.ask("look_up", [list(asked), list(answer)], most) for most in (0, 7)] for _ in range(runs)]
    ratios = [plain["decode_s"] / drafted["decode_s"] for plain, drafted in turns]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "processor_ratio": round(statistics.median(a["processor_s"] / b["processor_s"] for a, b in turns), 3),
        "steps": turns[0][1]["steps"],
        "tokens": len(answer),
    }


def measure(bench: Bench, only: set[str], num_slots: int, peer: Worker | None = None) -> dict[str, Any]:
    """Return the figures of every task."""
    shapes = bench.shapes
    results: dict[str, Any] = {}
    prompt = tuple(bench.random.randrange(3, bench.vocab_size) for _ in range(32))
    names = iter(range(10**9))

    if bench.drafter is not None:
        for is_adaptive in (True, False):
            name = f"draft model{'' if is_adaptive else ', always'}"
            results[name] = bench.compare(
                lambda: [Request(f"{next(names)}", prompt, 160, GREEDY)],
                partial(Speculation, shapes, (), model=bench.drafter, is_adaptive=is_adaptive),
            )
            print(name, json.dumps(results[name]), flush=True)
        return results

    def random_texts(count: int, tokens: int = 96) -> list[Request]:
        return [
            Request(f"{next(names)}", (*prompt, 3 + i), tokens, Sampling(temperature=1.0, seed=i)) for i in range(count)
        ]

    def oracle(text: Sequence[int], *, is_right: bool, is_adaptive: bool) -> Speculation:
        return Speculation(shapes, [Knowing(text, is_right=is_right)], is_adaptive=is_adaptive)

    def task(name: str, requests: Callable[[], list[Request]], speculation: Callable[[], Speculation]) -> None:
        results[name] = bench.compare(requests, speculation)
        print(name, json.dumps(results[name]), flush=True)

    if "oracle" in only:
        text = bench.text_of(Request("text", prompt, 240, GREEDY))
        for is_right, is_adaptive in product((True, False), (True, False)):
            name = f"oracle {'right' if is_right else 'wrong'}{'' if is_adaptive else ', always'}"
            task(
                name,
                lambda: [Request(f"{next(names)}", prompt, 240, GREEDY)],
                partial(oracle, text, is_right=is_right, is_adaptive=is_adaptive),
            )
    if "copy" in only:
        asked, answer = edited_file(bench.random, bench.vocab_size)
        task(
            "copy",
            lambda: [
                Request(f"{next(names)}", asked, len(answer), Sampling(temperature=0.0), constraint=Imposed(answer))
            ],
            lambda: Speculation(shapes),
        )
        if peer is not None:
            results["copy, llama.cpp"] = compare_lookup(peer, asked, answer, bench.runs)
            print("copy, llama.cpp", json.dumps(results["copy, llama.cpp"]), flush=True)
    for count in (1, 8, 32):
        if "random" in only and count <= num_slots:
            task(f"random {count}", partial(random_texts, count), lambda: Speculation(shapes))
    if "half" in only and num_slots >= 32:

        def half() -> list[Request]:
            repeating = [Request(f"{next(names)}", (*prompt, 3 + i), 96, Sampling(temperature=0.0)) for i in range(16)]
            return [*random_texts(16), *repeating]

        task("half copying 32", half, lambda: Speculation(shapes))
    return results


def write_shallow(folder: Path, geometry: Geometry) -> None:
    """Write a checkpoint of which only the first quarter of layers adds to the hidden states."""
    write_weights(folder, geometry)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")) and _layer(name) >= _quarter(geometry):
            tensor[:] = 0
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_quarter(folder: Path, shallow: Path, geometry: Geometry) -> Path:
    """Write the first quarter of the layers of a checkpoint as a model of its own."""
    quarter = replace(geometry, num_layers=_quarter(geometry))

    def write(folder: Path, geometry: Geometry) -> None:
        write_weights(folder, geometry)
        tensors = load_file(shallow / "model.safetensors")
        kept = {name: tensor for name, tensor in tensors.items() if _layer(name) < geometry.num_layers}
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})

    return make_checkpoint(folder, quarter, write)


def _quarter(geometry: Geometry) -> int:
    return max(geometry.num_layers // 4, 1)


def _layer(name: str) -> int:
    """Return the number of a tensor's layer; -1 for one of none."""
    parts = name.split(".")
    return int(parts[parts.index("layers") + 1]) if "layers" in parts else -1


def main() -> None:
    """Measure and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--quick", action="store_true", help="use a tiny model, to test the benchmark itself")
    parser.add_argument("--only", default="oracle,copy,random,half")
    parser.add_argument("--peer", action="store_true", help="measure llama.cpp's prompt lookup beside the copy")
    options = parser.parse_args()
    folder = ROOT / ".cache" / "bench"
    geometry, name = (TINY, "tiny-float32") if options.quick else (SMOLLM_135M, "llama-135m-float32")
    drafting = {}
    if options.only == "draft":
        checkpoint = make_checkpoint(folder / f"{name}-shallow", geometry, write_shallow)
        drafting = {"draft_model_uri": str(write_quarter(folder / f"{name}-quarter", checkpoint, geometry))}
    else:
        checkpoint = make_checkpoint(folder / name, geometry)
    settings = {
        **drafting,
        "model_uri": str(checkpoint),
        "max_num_seqs": options.slots,
        "quantization": options.quantization,
        "speculation": "auto",
        "local_model_cache": str(folder / "speculation"),
        "log_format": "text",
    }
    metrics = Metrics()
    start = ModelStart(StartContext(load_settings(settings, None), metrics, StartProgress(metrics)))
    loaded = start.wait_for_model()
    start.wait_until_ready()
    running: Any = loaded.running
    running.thread.stop()
    bench = Bench(running._runners[0], geometry.vocab_size, options.runs, running._drafters.get(0))
    peer = None
    if options.peer:
        gguf = checkpoint.with_name(checkpoint.name + ("-q8_0.gguf" if options.quantization == "int8" else ".gguf"))
        command = [str(LLAMACPP.python(folder / "llamacpp")), "-m", "benchmarks.peers.llamacpp"]
        peer = Worker([*command, str(checkpoint), str(gguf), "1", "1024"], folder / "llamacpp.log")
    tasks = measure(bench, set(options.only.split(",")), options.slots, peer)
    if peer is not None:
        peer.close()
    print(json.dumps(begun("benchmarks.speculation") | {"tasks": tasks}))


if __name__ == "__main__":
    main()
