"""Decode steps of an 8B model against the copy bandwidth of the same run, and against the bounds for them."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.device_check.report import Row, write_part

# The least share of the copy bandwidth, by batch size, where one is asked for.
BOUNDS = {1: 0.85, 32: 0.75}
INT8 = ("--quantization", "int8", "--kv-dtype", "int8")
RUNS = (  # cached positions of each sequence, batch sizes, further flags
    (1024, "1,4,16,64", ()),
    (1024, "1,16,64", ("--quantization", "int4")),
    (1024, "1,64", ("--quantization", "fp8", "--kv-dtype", "float8_e4m3fn")),
    (1024, "1,64", INT8),
    (512, "64", ("--longest", "32768")),
    (8192, "32", ("--mixed",)),
    (1024, "64", ("--sampler", "top-p")),
    (1024, "8,32", ()),
    (8192, "1,8", ()),
)
TINY_RUNS = ((64, "1,4", ()), (64, "4", ("--mixed",)), (32, "4", ("--longest", "128")), (64, "1", INT8))


def main(out: Path, *, is_tiny: bool) -> None:
    """Measure, each context in a process of its own."""
    rows: list[Row] = []
    for context, batches, more in TINY_RUNS if is_tiny else RUNS:
        report = measure(out, ["--context", str(context), "--batches", batches, *more], is_tiny=is_tiny)
        tokens = f"{context // 8} to {context}" if "--mixed" in more else str(context)
        tokens += "".join(f", {value}" for value in more if not value.startswith("--"))
        rows += [
            _row(batch, report, tokens, is_bounded=not is_tiny and context == 1024 and not more)
            for batch in report["batches"]
        ]
        write_part(out, "decode", rows)  # what has been measured stays if the time ends


def measure(
    out: Path, flags: Sequence[str], *, is_tiny: bool, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the report of a process that measures decode steps.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    path = out / "decode.measured"
    tiny = ["--tiny", "--steps", "4"] if is_tiny else []
    command = [sys.executable, "-m", "benchmarks.device_decode", *flags, *tiny, "--out", str(path)]
    subprocess.run(command, check=True, stdout=sys.stderr, env=os.environ | dict(environment or {}))
    return json.loads(path.read_text())


def _row(batch: dict, report: dict, tokens: str, *, is_bounded: bool) -> Row:
    if "needed_gb" in batch:
        note = f"does not fit: it takes {batch['needed_gb']} GB"
        return {"check": f"{batch['batch']} sequences of {tokens}", "passed": True, "note": note}
    bound = BOUNDS.get(batch["batch"]) if is_bounded else None
    share = batch["share_of_copy_bandwidth"]
    return {
        "check": f"{batch['batch']} sequences of {tokens}",
        "passed": bound is None or share >= bound,
        "kernel": report["kernel"],
        "ms a step": batch["ms_per_step"],
        "tokens/s": batch["tokens_per_s"],
        "GB/s": batch["gb_per_s"],
        "of copy bandwidth": share,
        "bound": "" if bound is None else bound,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_tiny="--tiny" in sys.argv)
