"""Quality of the demo model in 8 bits, by `levserve compare`, and the tests that hold what no figure says."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.quantization.ways import AVX2
from benchmarks.rounds import say

ROOT = Path(__file__).parents[2]
ANSWERS = ROOT / "tests" / "demo_answers.json"
TIMEOUT_S = 1200
# Settings and environment, by the name of a way.
COMPARED: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "int8": ("QUANTIZATION=int8", {}),
    "fp8": ("QUANTIZATION=fp8", {}),
    "int8 KV": ("KV_DTYPE=int8", {}),
    "fp8 KV": ("KV_DTYPE=fp8", {}),
    "int8, AVX2 alone": ("QUANTIZATION=int8", AVX2),
}
TESTS = {
    "logits of the int8 step against float32 of the same numbers, within 1e-3": "tests/parity/test_quantized.py",
    "pinned answers of the demo model in int8, on AVX2 alone too, and in fp8": "tests/start/test_quantized.py",
}


def measure_quality(
    checkpoint: Path, _options: argparse.Namespace, found: dict[str, Any], save: Callable[[], None]
) -> None:
    """Compare the demo model in each way with itself in float32, over its pinned answers."""
    text = checkpoint.parent / "quantization" / "answers.txt"
    text.parent.mkdir(parents=True, exist_ok=True)
    text.write_text("\n".join(f"{pair['question']}\n{pair['answer']}" for pair in json.loads(ANSWERS.read_text())))
    for name, (way, environment) in COMPARED.items():
        if name not in found:
            done = _run(["service", "compare", "", way, "--text", str(text)], {**environment, "MODEL_STREAM": "true"})
            done.check_returncode()
            found[name] = json.loads(done.stdout)
            save()
            say(f"{name}: perplexity ÷ float32 {found[name]['perplexity_ratio']}")


def run_checks(
    _checkpoint: Path, _options: argparse.Namespace, found: dict[str, Any], save: Callable[[], None]
) -> None:
    """Run tests; each passes or fails."""
    for name, path in TESTS.items():
        if name not in found:
            done = _run(["pytest", "--quiet", "--no-header", path], {})
            found[name] = done.returncode == 0
            save()
            say(f"{name}: {done.stdout.strip().splitlines()[-1]}")


def _run(arguments: list[str], environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
