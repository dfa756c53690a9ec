"""`make bench-seeing`: chats about images over HTTP, beside text and against transformers, alternately in one run.

    python -m benchmarks.seeing [--runs N] [--output FOLDER]

The model has Qwen3-VL's architecture, small, with random weights. Every image is new to the service. It writes
seeing.json (every run) and seeing.md (a table).
"""

import argparse
import asyncio
import base64
import io
import itertools
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from tokenizers import Tokenizer

from benchmarks.contenders import ROOT, HttpServer, Worker, levserve
from benchmarks.load import Answer, Call, send
from benchmarks.machine import begun, load_average, processor_s
from benchmarks.peers.environment import TRANSFORMERS, PeerAbsent
from benchmarks.quiet import MAX_ATTEMPTS, Quiet
from benchmarks.report import markdown_table, write_files
from benchmarks.rounds import say
from tests.sighted import save_qwen

TEXT = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [12, 10, 10]},
}
VISION = {
    "depth": 6,
    "hidden_size": 384,
    "num_heads": 6,
    "intermediate_size": 1536,
    "patch_size": 16,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [1, 3, 5],
    "out_hidden_size": 512,
}
IMAGE_TOKENS = (4, 1024)
SETTINGS = {"DTYPE": "float32", "MAX_NUM_SEQS": "16", "MAX_MODEL_LEN": "2048"}
LARGE, SMALL = 448, 224  # pixels of an edge
SMALL_TOKENS = (SMALL // (2 * VISION["patch_size"])) ** 2
QUESTION = "What is it?"
NUM_TRIALS = 4
STREAMS, STREAM_TOKENS = 8, 400
MAX_IMAGES = 8  # beside the streams: where these take long, more would wait than the service admits
IMAGES, AT_ONCE, ANSWER_TOKENS = 24, 8, 16
PEER = "transformers, best batch"


class Figure(NamedTuple):
    """A row of the table."""

    text: str
    sign: str
    bound: float
    of_runs: Callable[[Sequence[float]], float] = statistics.median


FIGURES = {
    "same_text": Figure("time to first token, second ÷ first request with an image, same text before it", "≤", 0.35),
    "other_text": Figure("the same, other text before it", "≤", 0.35),
    "beside": Figure("tokens/s of 8 text streams beside an image a second ÷ predicted", "≥", 0.85),
    "gaps": Figure("gaps between their tokens, 99th percentile ÷ (3 median gaps alone + one part)", "≤", 1, min),
    "peer": Figure(f"images/s, {AT_ONCE} at once ÷ those of {PEER}", "≥", 1.2),
}


def main() -> None:
    """Measure and write the results."""
    options = _parse_options()
    folder = ROOT / ".cache" / "bench"
    checkpoint = folder / "seeing"
    if not checkpoint.exists():
        save_qwen(checkpoint, text=TEXT, vision=VISION, image_tokens=IMAGE_TOKENS)
    results: dict[str, Any] = {
        **begun("benchmarks.seeing"),
        "absent": {},
        "contenders": {},
        "runs": [],
    }
    with ExitStack() as stack:
        say("starting the contenders")
        service = Service(stack.enter_context(closing(levserve(checkpoint, folder, SETTINGS))))
        peer = _peer(checkpoint, folder, stack, results)
        pids = (service.pid, *([] if peer is None else [peer.pid]))
        quiet = Quiet(pids, options.patience, options.attempts)
        for run in range(-1, options.runs):
            for task in (_first_tokens, _beside, partial(_images, peer=peer, checkpoint=checkpoint)):
                found, disturbance = quiet.measure(partial(task, service))
                say(f"run {run + 1}/{options.runs} {found}")
                if run >= 0:  # the first warms up
                    results["runs"].append({"run": run, "disturbance": disturbance, **found})
    results["load_average_after"] = load_average()
    write_files("seeing", results, _markdown(results), options.output)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.seeing", description="Measure how fast images are seen."
    )
    parser.add_argument("--runs", type=int, default=3, help="number of runs")
    parser.add_argument("--patience", type=float, default=20, help="seconds to wait for a quiet moment, each time")
    parser.add_argument("--attempts", type=int, default=MAX_ATTEMPTS, help="attempts to measure undisturbed")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results", help="folder for the results")
    return parser.parse_args()


def _peer(checkpoint: Path, folder: Path, stack: ExitStack, results: dict[str, Any]) -> Worker | None:
    """Start transformers; None if it is not there, which the results say with the reason."""
    try:
        python = TRANSFORMERS.python(folder / "transformers")
        command = [str(python), "-m", "benchmarks.peers.transformers_qwen3_vl", str(checkpoint)]
        worker = stack.enter_context(closing(Worker(command, folder / "transformers_qwen3_vl.log")))
    except (PeerAbsent, OSError, RuntimeError) as error:
        results["absent"][PEER] = str(error)
        say(f"absent: {PEER}: {error}")
        return None
    results["contenders"][PEER] = worker.facts
    return worker


class Spent(NamedTuple):
    """The answers to some requests, and the processor seconds of the service meanwhile."""

    answers: list[Answer]
    cpu_s: float


class Service:
    """The service, asked in streams."""

    def __init__(self, server: HttpServer) -> None:
        self.pid = server.pid
        self._server = server
        self._numbers = itertools.count()

    def new_image(self, edge: int) -> str:
        """Return an image that the service has not seen yet, as a data URL."""
        coarse = np.random.default_rng(next(self._numbers)).integers(0, 256, (edge // 8, edge // 8, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(coarse).resize((edge, edge)).save(file, "PNG")
        return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()

    def new_text(self) -> str:
        """Return a text that no request had before."""
        return f"{next(self._numbers)} is the number of a story."

    def call(self, *parts: str, num_tokens: int = 1, delay_s: float = 0.0) -> Call:
        """Return a chat of one turn about texts and images."""
        content = [
            {"type": "image_url", "image_url": {"url": part}}
            if part.startswith("data:")
            else {"type": "text", "text": part}
            for part in parts
        ]
        body = {
            "model": self._server.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,  # so that a token that completes no character comes too
        }
        return Call(body, delay_s, "/v1/chat/completions")

    def ask(self, *clients: Sequence[Call]) -> Spent:
        """Let several clients send their requests, each one after another."""

        async def one(calls: Sequence[Call]) -> list[Answer]:
            return [await send("127.0.0.1", self._server.port, call) for call in calls]

        async def all_of_them() -> list[list[Answer]]:
            return await asyncio.gather(*map(one, clients))

        began_cpu_s = processor_s(self.pid)
        answers = asyncio.run(all_of_them())
        return Spent([answer for own in answers for answer in own], processor_s(self.pid) - began_cpu_s)

    def num_parts(self) -> float:
        """Return how many parts of encodings have run."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._server.port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        found = (line for line in lines if line.startswith("levserve_engine_steps_total{") and 'kind="encode"' in line)
        return sum(float(line.rpartition(" ")[2]) for line in found)


def _first_s(spent: Spent) -> float:
    [answer] = spent.answers
    return answer.event_s[0] - answer.sent_s


def _first_tokens(service: Service) -> dict[str, Any]:
    """Ask about new images three times each: with the same text before, then with another one."""
    found: dict[str, list[tuple[float, float]]] = {"first": [], "same_text": [], "other_text": []}
    for _ in range(NUM_TRIALS):
        image, texts = service.new_image(LARGE), [service.new_text() for _ in range(4)]
        for name, parts in {
            "first": (image, texts[0]),
            "same_text": (image, texts[1]),
            "other_text": (texts[2], image, texts[3]),
        }.items():
            spent = service.ask([service.call(*parts)])
            found[name].append((_first_s(spent), spent.cpu_s))
    (first_s, first_cpu_s), *others = (
        (statistics.median(s for s, _ in own), sum(cpu_s for _, cpu_s in own)) for own in found.values()
    )
    result: dict[str, Any] = {"first_s": first_s, "first_cpu_s": first_cpu_s / NUM_TRIALS}
    for name, (seconds, cpu_s) in zip(("same_text", "other_text"), others, strict=True):
        result |= {name: seconds / first_s, f"{name}_by_cpu": cpu_s / first_cpu_s}
    return result


def _beside(service: Service) -> dict[str, Any]:
    """Let text streams run alone, and beside an image a second."""
    alone = _alone(service)
    streams = _streams(service, 0)
    count = min(int(streams["seconds"]), MAX_IMAGES)
    beside = _streams(service, count)
    # Predicted: the tokens/s alone, less the share of the time that the images take alone.
    predicted = (1 - count * alone["image_s"] / beside["seconds"]) / streams["seconds"]
    cpu_s = streams["cpu_s"] + count * alone["image_cpu_s"]
    bound_s = 3 * streams["median_gap_s"] + alone["part_s"]
    return {
        "beside": 1 / beside["seconds"] / predicted,
        "beside_by_cpu": cpu_s / beside["cpu_s"],
        "gaps": beside["p99_gap_s"] / bound_s,
        **alone,
        "num_images": count,
        "streams_alone": streams,
        "streams_beside": beside,
    }


def _alone(service: Service) -> dict[str, float]:
    """Return what one image takes, and one part of its encoding: what it takes less than when its rows are there."""
    new, again, cpu_s, began = [], [], 0.0, service.num_parts()
    for _ in range(NUM_TRIALS):
        image = service.new_image(SMALL)
        spent = service.ask([service.call(service.new_text(), image)])
        new.append(_first_s(spent))
        cpu_s += spent.cpu_s
        again.append(_first_s(service.ask([service.call(service.new_text(), image)])))
    image_s, parts = statistics.median(new), (service.num_parts() - began) / NUM_TRIALS
    encoder_s = max(0.0, image_s - statistics.median(again))
    return {"image_s": image_s, "image_cpu_s": cpu_s / NUM_TRIALS, "num_parts": parts, "part_s": encoder_s / parts}


def _streams(service: Service, num_images: int) -> dict[str, float]:
    """Time text streams, with an image at the beginning of each of the first seconds."""
    texts = [[service.call(service.new_text(), num_tokens=STREAM_TOKENS)] for _ in range(STREAMS)]
    images = [[service.call(service.new_image(SMALL), QUESTION, delay_s=number + 0.5)] for number in range(num_images)]
    spent = service.ask(*texts, *images)
    # The last event carries the usage, and no token.
    times = [answer.event_s[:-1] for answer in spent.answers[:STREAMS]]
    gaps = np.concatenate([np.diff(own) for own in times])
    median_s, p99_s = np.quantile(gaps, [0.5, 0.99]).tolist()
    seconds = max(own[-1] for own in times) - min(own[0] for own in times)
    return {"seconds": seconds, "cpu_s": spent.cpu_s, "median_gap_s": median_s, "p99_gap_s": p99_s}


def _images(service: Service, peer: Worker | None, checkpoint: Path) -> dict[str, Any]:
    """Ask about images, several at once, the service and then its peer."""
    calls = [service.call(service.new_image(SMALL), QUESTION, num_tokens=ANSWER_TOKENS) for _ in range(IMAGES)]
    began_s = time.perf_counter()
    spent = service.ask(*(calls[client::AT_ONCE] for client in range(AT_ONCE)))
    seconds = time.perf_counter() - began_s
    found: dict[str, Any] = {"images_per_s": IMAGES / seconds, "images_cpu_s": spent.cpu_s / IMAGES}
    if peer is None:
        return found
    own = peer.ask("see", [_prompt_ids(checkpoint)] * IMAGES, ANSWER_TOKENS)
    return found | {
        "peer": own["seconds"] / seconds,
        "peer_by_cpu": own["cpu_s"] / spent.cpu_s,
        "peer_images_per_s": IMAGES / own["seconds"],
        "peer_images_cpu_s": own["cpu_s"] / IMAGES,
        "peer_batch": own["batch"],
    }


def _prompt_ids(checkpoint: Path) -> list[int]:
    """Return the tokens of the prompt that the service makes of a small image and the question."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    shown = "<|vision_start|>" + "<|image_pad|>" * SMALL_TOKENS + "<|vision_end|>"
    return tokenizer.encode(f"user:{shown}{QUESTION}<end_of_utterance>assistant:", add_special_tokens=False).ids


def _markdown(results: Mapping[str, Any]) -> str:
    machine, runs = results["machine"], results["runs"]
    disturbance = statistics.median(record["disturbance"] for record in runs)
    head = (
        f"{machine['processor']}, {machine['cores']} cores; `{results['command']}`, {results['began'][:10]}; other "
        f"processes used {disturbance:.2f} cores meanwhile, the load average was {results['load_average_before']} "
        f"before and {results['load_average_after']} after."
    )
    columns = ["ratio", "measured", "least to most", "by processor time", "least to most", "bound"]
    rows = [row for name, figure in FIGURES.items() for row in _rows(runs, name, figure)]
    absent = [f"Absent: {name}: {reason}" for name, reason in results["absent"].items()]
    return "\n\n".join([head, markdown_table(columns, rows), *_absolute(runs), *absent]) + "\n"


def _rows(runs: Sequence[Mapping[str, Any]], name: str, figure: Figure) -> Iterator[list[str]]:
    if not any(name in record for record in runs):
        return
    cells = []
    for key, of_runs in ((name, figure.of_runs), (f"{name}_by_cpu", statistics.median)):
        found = [record[key] for record in runs if key in record]
        cells += [f"{of_runs(found):.2f}", f"{min(found):.2f} to {max(found):.2f}"] if found else ["", ""]
    yield [figure.text, *cells, f"{figure.sign} {figure.bound}"]


def _absolute(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what the ratios are made of."""

    def middle(key: str) -> float:
        return statistics.median(record[key] for record in runs if key in record)

    beside = [record["streams_alone"] for record in runs if "streams_alone" in record]
    tokens_per_s = statistics.median(STREAMS * STREAM_TOKENS / record["seconds"] for record in beside)
    yield (
        f"Medians: first token about a new image of {LARGE} x {LARGE} after {1000 * middle('first_s'):.0f} ms, of "
        f"{SMALL} x {SMALL} after {1000 * middle('image_s'):.0f} ms ({1000 * middle('image_cpu_s'):.0f} ms of "
        f"processor time), {middle('num_parts'):.0f} parts of {1000 * middle('part_s'):.0f} ms each of it; text alone "
        f"{tokens_per_s:.0f} tokens/s; {middle('images_per_s'):.1f} images/s, "
        f"{1000 * middle('images_cpu_s'):.0f} ms of processor time each."
    )
    if any("peer" in record for record in runs):
        yield (
            f"{PEER} ({middle('peer_batch'):.0f}): {middle('peer_images_per_s'):.1f} images/s, "
            f"{1000 * middle('peer_images_cpu_s'):.0f} ms of processor time each."
        )


if __name__ == "__main__":
    main()
