"""Decode steps of an 8B model against the copy bandwidth of the same run, and against the bounds for them."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.device_check.report import Row, write_part

# The least share of the copy bandwidth, by batch size, where one is asked for.
BOUNDS = {1: 0.85, 32: 0.75}
RUNS = ((1024, "1,8,32,64"), (8192, "1,8"))  # cached positions of each sequence, batch sizes


def main(out: Path, *, is_tiny: bool) -> None:
    """Measure, each context in a process of its own."""
    rows = []
    for context, batches in ((64, "1,4"),) if is_tiny else RUNS:
        path = out / f"decode_{context}.measured"
        flags = ["--context", str(context), "--batches", batches, "--out", str(path)]
        tiny = ["--tiny", "--steps", "4"] if is_tiny else []
        subprocess.run([sys.executable, "-m", "benchmarks.device_decode", *flags, *tiny], check=True, stdout=sys.stderr)
        report = json.loads(path.read_text())
        rows += [_row(batch, report, context, is_tiny=is_tiny) for batch in report["batches"]]
    write_part(out, "decode", rows)


def _row(batch: dict, report: dict, context: int, *, is_tiny: bool) -> Row:
    bound = None if is_tiny or context > 1024 else BOUNDS.get(batch["batch"])
    share = batch["share_of_copy_bandwidth"]
    return {
        "check": f"{batch['batch']} sequences of {context} tokens",
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
