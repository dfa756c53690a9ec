"""Check a machine with a GPU or a TPU, part by part, and write a page of tables with pass and fail.

A part is a process of its own, with a limit of nine minutes. One that has passed is not run again, so that a check that
was stopped goes on where it was. It needs no network.

    make device-check                                  # on a GPU or a TPU
    make device-check ARGUMENTS="--tiny"               # the check itself, on any machine
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.device_check.report import write_page

PARTS = ("kernels", "decode", "starts")
LIMIT_S = 540


def main(arguments: list[str]) -> int:
    """Run the parts that have not passed, write the page, and return 0 if all have."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="use tiny models, to test the check itself")
    parser.add_argument("--out", type=Path, default=Path(".cache/device_check"), help="a folder, which is kept")
    parser.add_argument("--parts", default=",".join(PARTS), help="the parts to run")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    for part in options.parts.split(","):
        if not _has_passed(options.out / f"{part}.json"):
            _run(part, options.out, is_tiny=options.tiny)
    results = {part: _read(options.out / f"{part}.json") for part in PARTS}
    page = write_page(results)
    (options.out / "report.md").write_text(page)
    sys.stdout.write(page)
    return 0 if all(_has_passed(options.out / f"{part}.json") for part in PARTS) else 1


def _run(part: str, out: Path, *, is_tiny: bool) -> None:
    command = [sys.executable, "-m", f"benchmarks.device_check.{part}", str(out), *(["--tiny"] if is_tiny else [])]
    path = out / f"{part}.json"
    path.unlink(missing_ok=True)
    try:
        subprocess.run(command, check=True, timeout=LIMIT_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        rows = _read(path).get("rows", [])
        path.write_text(json.dumps({"rows": [*rows, {"check": part, "passed": False, "error": str(error)[:500]}]}))


def _read(path: Path) -> dict:
    return json.loads(path.read_text()) if path.exists() else {}


def _has_passed(path: Path) -> bool:
    rows = _read(path).get("rows", [])
    return bool(rows) and all(row["passed"] for row in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
