"""What is measured of a service of many models; each function returns figures beside their bounds."""

import statistics
import threading
import time
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.catalogue.service import CatalogueService
from benchmarks.load import Answer
from scripts.soak.figures import Figure, percentile

READ_BYTES = 8 * 1024 * 1024
PROMPT_TOKENS, STREAM_PROMPT_TOKENS = 16, 128
NUM_MODELS = 4
STALL_S = 0.25


def swap(service: CatalogueService, models: Path, num_runs: int) -> list[Figure]:
    """Compare the first token of a model that is not loaded with the reading of its bytes and one prefill step."""
    ratios = []
    for run in range(num_runs):
        prompt = service.prompt(run, PROMPT_TOKENS)
        service.load("m1")
        step_s = min(service.first_token_s("m1", service.prompt(1000 + n, PROMPT_TOKENS)) for n in range(3))
        service.unload("m1")
        # The first time, the system may have to read the disk.
        floor_s = min(read_s(models / "m1" / "model.safetensors") for _ in range(3)) + step_s
        ratios.append(service.first_token_s("m1", prompt) / floor_s)
    return [_at_most("first token of a model that is not loaded ÷ (its bytes + one prefill step)", ratios, 1.3)]


def load_beside(service: CatalogueService, num_tokens: int, num_runs: int) -> list[Figure]:
    """Compare a model's streams while another one loads with the same streams alone."""
    ratios, stalls = [], []
    for run in range(num_runs):
        service.load("m0")
        service.unload("m1")
        alone = _streams(service, ["m0"] * 8, num_tokens, seed=100 * run)
        loaded_s: list[float] = []

        def load_in_the_middle(delay_s: float, loaded_s: list[float] = loaded_s) -> None:
            time.sleep(delay_s)
            loaded_s.append(time.perf_counter())
            service.load("m1")
            loaded_s.append(time.perf_counter())

        thread = threading.Thread(target=load_in_the_middle, args=(_seconds(alone) / 4,))
        thread.start()
        beside = _streams(service, ["m0"] * 8, num_tokens, seed=100 * run + 50)
        thread.join()
        begin_s, end_s = loaded_s[0], min(loaded_s[1], *(answer.event_s[-3] for answer in beside))
        ratios.append(_rate(beside, begin_s, end_s) / _rate(alone))
        gaps = [b - a for answer in beside for a, b in pairwise(answer.event_s[:-2]) if begin_s <= b <= end_s]
        stalls.append(max(gaps, default=0.0))
    return [
        _at_least("tokens/s of a model while another loads ÷ alone", ratios, 0.7),
        Figure(
            "longest time between tokens meanwhile", f"≤ {STALL_S * 1e3:.0f} ms", _ms(stalls), max(stalls) <= STALL_S
        ),
    ]


def side_by_side(service: CatalogueService, num_tokens: int, num_runs: int) -> list[Figure]:
    """Compare two models of 8 streams each with one of 16."""
    for model in ("m0", "m1"):
        service.load(model)
    ratios, shares = [], []
    for run in range(num_runs):
        one = _streams(service, ["m0"] * 16, num_tokens, seed=200 * run)
        two = _streams(service, ["m0", "m1"] * 8, num_tokens, seed=200 * run + 100)
        ratios.append(_seconds(one) / _seconds(two))
        ends = sorted(_seconds(two[model::2]) for model in (0, 1))
        shares.append(ends[1] / ends[0])
    return [
        _at_least("two models, 8 streams each, ÷ one with 16, tokens/s", ratios, 0.9),
        _at_most("time of the slower of two models ÷ of the quicker one", shares, 1.1),
    ]


def swaps(service: CatalogueService, num_swaps: int, expected: dict[tuple[str, int], str]) -> list[Figure]:
    """Ask four models in turn, two of which may be loaded, and look at what is left after the tenth and the last."""
    wrong = number = 0
    resources = []
    while (starts := sum(report["starts"] for report in service.reports())) < num_swaps or len(resources) < 2:
        if starts >= (10, num_swaps)[len(resources)]:
            resources.append(_resources(service))
            continue
        models = [f"m{(number + offset) % NUM_MODELS}" for offset in range(NUM_MODELS)]
        prompt = service.prompt(number % 5, 8)
        texts = _all_at_once([lambda m=model, p=prompt: service.text(m, p, 8) for model in models])
        wrong += sum(text != expected[model, number % 5] for model, text in zip(models, texts, strict=True))
        number += 1
    tenth, last = resources
    reports = service.reports()
    return [
        Figure("loads of four models, of which two may be loaded", f"≥ {num_swaps}", str(starts), is_met=True),
        Figure("answers that differ from the single-model service's", "0", str(wrong), wrong == 0),
        _at_most("resident memory after the last swap ÷ after the tenth", [last[0] / tenth[0]], 1.05),
        Figure(
            "threads and file handles lost",
            "0, 0",
            f"{last[1] - tenth[1]}, {last[2] - tenth[2]}",
            last[1:] <= tenth[1:],
        ),
        Figure("open requests and pages in use at the end", "0, 0", *_left(service, reports)),
    ]


def long_catalogue(service: CatalogueService, num_models: int, num_requests: int) -> list[Figure]:
    """Time the list of a thousand models."""
    times, body = [], b""
    for _ in range(num_requests):
        began_s = time.perf_counter()
        with urllib.request.urlopen(f"http://127.0.0.1:{service.port}/v1/models") as response:
            body = response.read()
        times.append(time.perf_counter() - began_s)
    assert body.count(b'"object":"model"') == num_models, body[:200]
    p99_s = percentile(times, 99)
    return [Figure(f"/v1/models of {num_models:,} models, p99", "≤ 20 ms", f"{p99_s * 1e3:.1f} ms", p99_s <= 0.02)]


def read_s(path: Path) -> float:
    """Return the seconds in which a file's bytes are read into memory that nothing has used yet."""
    began_s = time.perf_counter()
    memory = memoryview(np.empty(path.stat().st_size, np.uint8))
    with path.open("rb", buffering=0) as file:
        done = 0
        while num_bytes := file.readinto(memory[done : done + READ_BYTES]):
            done += num_bytes
    return time.perf_counter() - began_s


def _streams(service: CatalogueService, models: list[str], num_tokens: int, seed: int) -> list[Answer]:
    """Stream a completion of each model named; the prompts have no common prefix."""
    prompts = [service.prompt(seed + number, STREAM_PROMPT_TOKENS) for number in range(len(models))]
    return service.stream([(model, prompt, num_tokens, 0.0) for model, prompt in zip(models, prompts, strict=True)])


def _seconds(answers: list[Answer]) -> float:
    return max(answer.event_s[-3] for answer in answers) - min(answer.sent_s for answer in answers)


def _rate(answers: list[Answer], begin_s: float = 0.0, end_s: float = float("inf")) -> float:
    """Return tokens per second between two times, or while every stream is between its first and its last token."""
    begin_s = max(begin_s, *(answer.event_s[0] for answer in answers))
    end_s = min(end_s, *(answer.event_s[-3] for answer in answers))
    return sum(begin_s < time_s <= end_s for answer in answers for time_s in answer.event_s[:-2]) / (end_s - begin_s)


def _all_at_once(tasks: list[Callable[[], str]]) -> list[str]:
    results: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda i=index, t=task: results.__setitem__(i, t())) for index, task in enumerate(tasks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results.get(index, "") for index in range(len(tasks))]


def _resources(service: CatalogueService) -> tuple[int, int, int]:
    """Return the resident bytes, threads and file handles of the service once it is idle."""
    while any(report["state"] not in ("ready", "available") for report in service.reports()):
        time.sleep(0.1)
    time.sleep(1)
    return service.process.memory_info().rss, service.process.num_threads(), service.process.num_fds()


def _left(service: CatalogueService, reports: list[dict]) -> tuple[str, bool]:
    with urllib.request.urlopen(f"http://127.0.0.1:{service.port}/metrics") as response:
        lines = response.read().decode().splitlines()
    used = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("levserve_kv_cache_usage_perc{")]
    num_open = sum(report["open_requests"] + report["waiting_requests"] for report in reports)
    return f"{num_open}, {sum(used):g}", num_open == 0 and not any(used)


def _at_most(row: str, values: list[float], bound: float) -> Figure:
    middle = statistics.median(values)
    return Figure(row, f"≤ {bound:g}", f"{middle:.2f}", middle <= bound)


def _at_least(row: str, values: list[float], bound: float) -> Figure:
    middle = statistics.median(values)
    return Figure(row, f"≥ {bound:g}", f"{middle:.2f}", middle >= bound)


def _ms(values: list[float]) -> str:
    return f"{max(values) * 1e3:.0f} ms"
