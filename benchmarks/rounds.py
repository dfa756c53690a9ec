"""Rounds of measurements: all contenders one after the other, repeatedly, so that a slow minute affects all of them."""

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from typing import Any

from benchmarks.contenders import Contender, HttpServer, Worker
from benchmarks.peers.environment import PeerAbsent
from benchmarks.peers.start import ENGINE, MAX_RUNS, OURS, Site, start_contender
from benchmarks.quiet import Quiet
from benchmarks.workload import Wave

CHECKED_TOKENS = 16


@contextmanager
def started(names: list[str], site: Site, absent: dict[str, str]) -> Iterator[dict[str, Contender]]:
    """Start the contenders, and stop them at the end; `absent` receives those that do not start, with the reason."""
    with ExitStack() as stack:
        contenders = {}
        for name in names:
            say(f"starting {name}")
            try:
                contenders[name] = stack.enter_context(closing(start_contender(name, site)))
            except PeerAbsent as error:
                absent[name] = str(error)
                say(f"absent: {name}: {error}")
        yield contenders


def warm(contenders: Mapping[str, Contender], waves: list[Wave], word_ids: list[int]) -> None:
    """Run each wave once with every contender, so that all have compiled and allocated."""
    for wave in waves:
        for name, contender in contenders.items():
            say(f"warming {name} {wave.name}")
            contender.run(wave.prompts(word_ids, seed=10_000), min(wave.output_tokens, 3))


def run_rounds(
    contenders: Mapping[str, Contender], waves: list[Wave], word_ids: list[int], num_runs: int, quiet: Quiet
) -> Iterator[dict[str, Any]]:
    """Measure every wave with every contender `num_runs` times; yield each record as soon as it is complete."""
    seeds = itertools.count()

    def fresh_prompts(wave: Wave) -> list[list[int]]:
        # New prompts each time, so that a prefix cache does not help a second attempt.
        return wave.prompts(word_ids, next(seeds))

    for run in range(num_runs):
        for wave in waves:
            for name, task in _tasks(contenders, wave, fresh_prompts).items():
                if run >= MAX_RUNS.get(name, num_runs):
                    continue
                figures, disturbance = quiet.measure(task)
                facts = {"contender": name, "wave": wave.name, "run": run, "disturbance": disturbance}
                facts["prompt_tokens"] = wave.num_requests * wave.prompt_tokens
                facts["tokens_per_s"] = figures["num_tokens"] / figures["seconds"]
                speed = f"{facts['tokens_per_s']:.1f} tokens/s, others used {disturbance:.2f} cores"
                say(f"run {run + 1}/{num_runs} {wave.name} {name}: {speed}")
                yield facts | figures


def _tasks(
    contenders: Mapping[str, Contender], wave: Wave, fresh_prompts: Callable[[Wave], list[list[int]]]
) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the measurements: one per contender, and the bare steps of Levserve's engine."""

    def run(contender: Contender) -> dict[str, Any]:
        outcome = asdict(contender.run(fresh_prompts(wave), wave.output_tokens))
        return {name: value for name, value in outcome.items() if name != "token_ids"}

    def run_bare(engine: Worker) -> dict[str, Any]:
        result = engine.ask("bare", fresh_prompts(wave), wave.output_tokens)
        return result | {"num_tokens": wave.num_requests * wave.output_tokens}

    tasks = {name: functools.partial(run, contender) for name, contender in contenders.items()}
    engine = contenders.get(ENGINE)
    assert isinstance(engine, Worker)
    return tasks | {"bare": functools.partial(run_bare, engine)}


def check_agreement(contenders: Mapping[str, Contender], prompt: list[int], tokenizer: Any) -> dict[str, int]:
    """Return how many of the first tokens agree with Levserve's, by contender: all must use the same weights."""
    ours = contenders[OURS]
    assert isinstance(ours, HttpServer)
    expected = ours.answer(prompt, CHECKED_TOKENS, return_token_ids=True)["choices"][0]["token_ids"]
    found = {}
    for name, contender in contenders.items():
        if isinstance(contender, Worker):
            token_ids = contender.run([prompt], CHECKED_TOKENS).token_ids[0]
        elif name == OURS:
            continue
        else:
            assert isinstance(contender, HttpServer)
            text = contender.answer(prompt, CHECKED_TOKENS)["choices"][0]["text"]
            token_ids = tokenizer.encode(text, add_special_tokens=False).ids
        pairs = zip(token_ids, expected, strict=False)
        found[name] = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(token_ids), len(expected)))
    say(f"agreement in the first {CHECKED_TOKENS} tokens: {found}")
    return found


def say(text: str) -> None:
    """Print a line of progress with the time."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)
