"""Streams of the service against its bare decode steps: 1, 16 and 64 at once, greedy and of the likeliest tokens."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.checkpoint import word_ids
from benchmarks.contenders import levserve, outcome_of
from benchmarks.device_check.model import FOLDER
from benchmarks.device_check.report import Row, write_part
from benchmarks.device_check.starts import settings_of
from benchmarks.load import Call
from benchmarks.workload import Outcome
from service.device.memory import ACCELERATOR_FRACTION

SAMPLINGS = {"greedy": {"temperature": 0}, "top-p 0.9": {"temperature": 1, "top_p": 0.9}}
STREAMS, PROMPT_TOKENS, OUTPUT_TOKENS = (1, 16, 64), 960, 128
TINY_STREAMS, TINY_PROMPT_TOKENS, TINY_OUTPUT_TOKENS = (1, 4), 16, 8
LEAST_SHARE = 0.9  # of bare decode steps, with 64 greedy streams


def main(out: Path, *, is_tiny: bool) -> None:
    """Start the service once, and send every load to it."""
    prompt_tokens, output_tokens = (
        (TINY_PROMPT_TOKENS, TINY_OUTPUT_TOKENS) if is_tiny else (PROMPT_TOKENS, OUTPUT_TOKENS)
    )
    words = word_ids(out / FOLDER)
    random = np.random.default_rng(0)
    server = levserve(out / FOLDER, out, settings_of(out, is_tiny=is_tiny))
    rows: list[Row] = []
    try:
        for number in TINY_STREAMS if is_tiny else STREAMS:
            for name, options in SAMPLINGS.items():
                prompts = random.choice(words, (number, prompt_tokens)).tolist()
                calls = [Call(server.call(prompt, output_tokens).body | options) for prompt in prompts]
                outcome = outcome_of(*server.send(calls), output_tokens)
                bare = None if is_tiny or name != "greedy" else _bare_tokens_per_s(out, number)
                rows.append(_row(f"streams: {number}, {name}", outcome, bare, is_bounded=number == STREAMS[-1]))
                write_part(out, "streams", rows)
        rows += _memory_beside_pool()
    finally:
        server.close()
    write_part(out, "streams", rows)


def _memory_beside_pool() -> list[Row]:
    """Return what the driver says of a GPU's memory while the service holds it; nothing without such a driver."""
    command = ["nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    used_mib, total_mib = map(int, answer.splitlines()[0].split(","))
    pool_mib = total_mib * ACCELERATOR_FRACTION
    figures = {"GiB in use": round(used_mib / 1024, 2), "beside the pool": round((used_mib - pool_mib) / 1024, 2)}
    return [{"check": "memory of the device", "passed": True, **figures}]


def _row(check: str, outcome: Outcome, bare: float | None, *, is_bounded: bool) -> Row:
    together = outcome.full_tokens / outcome.full_s if outcome.full_s else outcome.tokens_per_s
    share = None if bare is None else round(together / bare, 3)
    return {
        "check": check,
        "passed": share is None or not is_bounded or share >= LEAST_SHARE,
        "tokens/s": round(outcome.tokens_per_s, 1),
        "tokens/s while all decode": round(together, 1),
        "first token, ms": round(float(np.median(outcome.first_token_s)) * 1e3, 1),
        "99th gap, ms": round(float(np.percentile(outcome.gap_s, 99)) * 1e3, 1),
        "of bare decode": "" if share is None else share,
    }


def _bare_tokens_per_s(out: Path, number: int) -> float | None:
    """Return the speed of decode steps of as many sequences, if it was measured."""
    path = out / "decode.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return next((row["tokens/s"] for row in rows if row["check"] == f"{number} sequences of 1024"), None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_tiny="--tiny" in sys.argv)
