"""Check a machine with a GPU or a TPU, part by part, and write a page of tables with pass and fail.

A part is a process of its own, with a limit of nine minutes, and all have one of 36. A part that has passed is not run
again, so that a check that was stopped goes on where it was. It needs no network.

    make device-check                                  # on a GPU or a TPU
    make device-check ARGUMENTS="--tiny"               # the check itself, on any machine
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.device_check.report import write_page

# In the order of what is to be known first: what only a device gives (`starts` keeps tunings, `widened` a table),
# whether it is right, how fast it is. `starts` serves the model of `model`, and `streams` its bundle.
PARTS = (
    "model",
    "starts",
    "kernels",
    "widened",
    "decode",
    "streams",
    "prefill",
    "demo",
    "sweep",
    "peer",
    "target",
    "transfers",
    "profile",
    "flags",
)
LIMIT_S, LEAST_S = 540, 20  # of a part
TOTAL_S = 36 * 60  # four calls of nine minutes


def main(arguments: list[str]) -> int:
    """Run the parts that have not passed, write the page, and return 0 if all have."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="use tiny models, to test the check itself")
    parser.add_argument("--out", type=Path, default=Path(".cache/device_check"), help="a folder, which is kept")
    parser.add_argument("--parts", default=",".join(PARTS), help="the parts to run")
    parser.add_argument("--seconds", type=int, default=TOTAL_S, help="of all parts; what is left is for the next run")
    parser.add_argument("--most", type=int, default=LIMIT_S, help="seconds of one part")
    options = parser.parse_args(arguments)
    end_s = time.monotonic() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    for part in options.parts.split(","):
        left_s = end_s - time.monotonic()
        if left_s >= LEAST_S and not _has_passed(options.out / f"{part}.json"):
            _run(part, options.out, min(left_s, options.most), is_tiny=options.tiny)
    results = {part: _read(options.out / f"{part}.json") for part in PARTS}
    page = write_page(results)
    (options.out / "report.md").write_text(page)
    sys.stdout.write(page)
    return 0 if all(_has_passed(options.out / f"{part}.json") for part in PARTS) else 1


def _run(part: str, out: Path, limit_s: float, *, is_tiny: bool) -> None:
    command = [sys.executable, "-m", f"benchmarks.device_check.{part}", str(out), *(["--tiny"] if is_tiny else [])]
    path = out / f"{part}.json"
    path.unlink(missing_ok=True)
    try:
        _run_in_session(command, limit_s)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        rows = _read(path).get("rows", [])
        path.write_text(json.dumps({"rows": [*rows, {"check": part, "passed": False, "error": str(error)[:500]}]}))


def _run_in_session(command: list[str], limit_s: float) -> None:
    """Run a command, and end what it started too: a service that stays would keep the device's memory."""
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            status = process.wait(limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if status:
        raise subprocess.CalledProcessError(status, command)


def _read(path: Path) -> dict:
    return json.loads(path.read_text()) if path.exists() else {}


def _has_passed(path: Path) -> bool:
    rows = _read(path).get("rows", [])
    return bool(rows) and all(row["passed"] for row in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
